// SPDX-License-Identifier: Apache-2.0
/* cuGetExportTable: the implementations themselves, past the exported stubs and whatever probes lie on them. */
#include <string.h>

#include "cuda_api.h"
#include "simtable.h"

#define DECLARE(field, name, impl) extern char table_##field[] __asm__("sim_" #impl);
SIM_TABLE(DECLARE)

#define ENTRY(field, name, impl) table_##field,
static const struct sim_table table = {sizeof(table), {SIM_TABLE(ENTRY)}};

CUresult sim_cuGetExportTable(const void **out, const void *id);

CUresult sim_cuGetExportTable(const void **out, const void *id)
{
	static const unsigned char known[16] = SIM_TABLE_ID;

	if (!out || !id)
		return CUDA_ERROR_INVALID_VALUE;
	if (memcmp(id, known, sizeof(known)))
		return CUDA_ERROR_NOT_FOUND;
	*out = &table;
	return CUDA_SUCCESS;
}
