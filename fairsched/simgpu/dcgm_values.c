// SPDX-License-Identifier: Apache-2.0
/*
 * The latest values of fields: those of the period that ended last.
 *
 * The ratio of 1001 is exact. What the SMs do is not modelled: 1002 is a plausible figure.
 */
#define _GNU_SOURCE
#include <string.h>

#include "dcgm_int.h"

#define SM_PART .8

typedef int (*enumerate_gpus)(unsigned int gpu, struct field_value_v1 *values, int count, void *user);
typedef int (*enumerate_entities)(unsigned int entity_group, unsigned int entity,
				  struct field_value_v1 *values, int count, void *user);

static const struct {
	unsigned short field;
	char type;
} fields_known[] = {
	{FIELD_NAME, 's'},      {FIELD_UUID, 's'}, {FIELD_GPU_UTIL, 'i'}, {FIELD_GR_ENGINE_ACTIVE, 'd'},
	{FIELD_SM_ACTIVE, 'd'},
};

static char type_of(unsigned short field)
{
	for (size_t i = 0; i < sizeof(fields_known) / sizeof(fields_known[0]); i++)
		if (fields_known[i].field == field)
			return fields_known[i].type;
	return '\0';
}

static void blank(struct field_value_v1 *v, dcgmReturn status)
{
	v->status = status;
	if (v->type == 'd')
		v->value.dbl = DCGM_FP64_BLANK;
	else
		v->value.i64 = DCGM_INT64_BLANK;
}

static void fill(struct field_value_v1 *v, const struct sim_gpu *gpu, const struct reading *r)
{
	v->time_us = r->time_us;
	switch (v->field) {
	case FIELD_NAME:
		strcpy(v->value.str, gpu->spec.name);
		return;
	case FIELD_UUID:
		strcpy(v->value.str, gpu->spec.uuid);
		return;
	case FIELD_GPU_UTIL:
		v->value.i64 = r->util_pct;
		return;
	case FIELD_GR_ENGINE_ACTIVE:
		v->value.dbl = r->active_ratio;
		return;
	default:
		v->value.dbl = r->active_ratio * SM_PART;
	}
}

/*
 * The latest value of one field of a device; from the driver if it `is_live`, which fields of profiling cannot be. An
 * instance has those of profiling only: NVML does not know how busy it is.
 */
static void latest(struct connection *c, unsigned int gpu, unsigned short field, bool is_live,
		   struct field_value_v1 *v)
{
	bool is_instance = gpu >= SIM_MAX_GPUS;
	const struct watch *w = find_watch(c, field);

	memset(v, 0, sizeof(*v));
	v->version = VERSION_OF(sizeof(*v), 1);
	v->field = field;
	v->type = (unsigned short)(type_of(field) ? type_of(field) : 'i');
	is_live &= field < FIRST_PROFILING_FIELD;
	if (field >= LAST_FIELD)
		blank(v, DCGM_ST_UNKNOWN_FIELD);
	else if (!type_of(field) || (is_instance && field < FIRST_PROFILING_FIELD))
		blank(v, DCGM_ST_NOT_SUPPORTED);
	else if (atomic_load(&dcgm.gpus[gpu]->dead))
		blank(v, DCGM_ST_GPU_IS_LOST);
	else if (!is_live && !(w && (is_instance ? w->has_instances : w->gpus >> gpu & 1u)))
		blank(v, DCGM_ST_NOT_WATCHED);
	else if (!is_live && !c->readings[gpu].time_us)
		blank(v, DCGM_ST_NO_DATA);
	else
		fill(v, dcgm.gpus[gpu], &c->readings[gpu]);
}

DCGM_API dcgmReturn dcgmEntityGetLatestValues(dcgmHandle handle, unsigned int entity_group, int entity,
					      unsigned short fields[], unsigned int count,
					      struct field_value_v1 values[])
{
	int device;
	dcgmReturn rc;
	struct connection *c = connection_use(handle, &rc);

	if (!c)
		return rc;
	device = device_of(entity_group, (unsigned int)entity);
	if (device < 0)
		return connection_done(DCGM_ST_BADPARAM);
	for (unsigned int i = 0; i < count; i++)
		latest(c, (unsigned int)device, fields[i], false, &values[i]);
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmGetLatestValuesForFields(dcgmHandle handle, int gpu, unsigned short fields[],
						 unsigned int count, struct field_value_v1 values[])
{
	return dcgmEntityGetLatestValues(handle, DCGM_FE_GPU, gpu, fields, count, values);
}

DCGM_API dcgmReturn dcgmEntitiesGetLatestValues(dcgmHandle handle, struct entity_pair entities[],
						unsigned int entity_count, unsigned short fields[],
						unsigned int count, unsigned int flags,
						struct field_value_v2 values[])
{
	struct field_value_v1 v;
	struct connection *c;
	dcgmReturn rc;

	if (!entities || !fields || !values)
		return DCGM_ST_BADPARAM;
	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	for (unsigned int e = 0; e < entity_count; e++) {
		int device = device_of(entities[e].entity_group, entities[e].entity);

		if (device < 0)
			return connection_done(DCGM_ST_BADPARAM);
		for (unsigned int i = 0; i < count; i++, values++) {
			latest(c, (unsigned int)device, fields[i], flags & DCGM_FV_FLAG_LIVE_DATA, &v);
			*values = (struct field_value_v2){VERSION_OF(sizeof(*values), 2),
							  entities[e].entity_group,
							  entities[e].entity,
							  v.field,
							  v.type,
							  v.status,
							  0,
							  v.time_us,
							  v.value};
		}
	}
	return connection_done(DCGM_ST_OK);
}

/* Tell `say`, or `say_gpu`, each GPU's values; without the lock, as it may call us. */
static dcgmReturn enumerate(dcgmHandle handle, uintptr_t group, uintptr_t field_group, enumerate_entities say,
			    enumerate_gpus say_gpu, void *user)
{
	struct field_value_v1 values[MAX_WATCHED];
	struct field_group fields;
	struct connection *c;
	uint32_t gpus;
	dcgmReturn rc;

	for (unsigned int gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
		c = connection_use(handle, &rc);
		if (!c)
			return rc;
		if (!own_field_group(c, field_group) || !group_gpus(c, group, &gpus))
			return connection_done(DCGM_ST_BADPARAM);
		fields = *own_field_group(c, field_group);
		for (unsigned int i = 0; gpus & 1u << gpu && i < fields.count; i++)
			latest(c, gpu, fields.fields[i], false, &values[i]);
		connection_done(DCGM_ST_OK);
		if (!(gpus & 1u << gpu))
			continue;
		if (say ? say(DCGM_FE_GPU, gpu, values, (int)fields.count, user)
			: say_gpu(gpu, values, (int)fields.count, user))
			break;
	}
	return DCGM_ST_OK;
}

DCGM_API dcgmReturn dcgmGetLatestValues_v2(dcgmHandle handle, uintptr_t group, uintptr_t field_group,
					   enumerate_entities say, void *user)
{
	return say ? enumerate(handle, group, field_group, say, NULL, user) : DCGM_ST_BADPARAM;
}

DCGM_API dcgmReturn dcgmGetLatestValues(dcgmHandle handle, uintptr_t group, uintptr_t field_group,
					enumerate_gpus say, void *user)
{
	return say ? enumerate(handle, group, field_group, NULL, say, user) : DCGM_ST_BADPARAM;
}

DCGM_API int DcgmFieldsInit(void)
{
	return 0;
}

DCGM_API int DcgmFieldsTerm(void)
{
	return 0;
}

_Static_assert(sizeof(struct field_value_v1) == 4120, "as in DCGM");
_Static_assert(sizeof(struct field_value_v2) == 4128, "as in DCGM");
