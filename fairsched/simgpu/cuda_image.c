// SPDX-License-Identifier: Apache-2.0
/*
 * What a module's image says of itself. A cubin is an ELF file whose symbols name its kernels and variables; PTX is
 * text with ".entry NAME". Anything else (a fat binary) is taken as it is: any kernel may be in it. The code itself
 * is never looked at.
 */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

#define MAX_IMAGE_BYTES (1ull << 30)
#define IS_ENTRY 0x10 /* st_other of a kernel, and not of a device function */

struct cu_image {
	enum {
		IMAGE_ELF,
		IMAGE_PTX,
		IMAGE_OPAQUE
	} kind;
	uint64_t bytes;
	const Elf64_Sym *symbols;
	uint64_t symbol_count;
	const char *names;
	uint64_t names_bytes;
	char **entries; /* kernels by name, NULL at the end */
	uint32_t entry_count;
	char data[];
};

static uint64_t elf_bytes(const Elf64_Ehdr *h)
{
	const Elf64_Shdr *s = (const void *)((const char *)h + h->e_shoff);
	uint64_t end = h->e_shoff + (uint64_t)h->e_shnum * h->e_shentsize;

	for (int i = 0; i < h->e_shnum; i++)
		if (s[i].sh_type != SHT_NOBITS && s[i].sh_offset + s[i].sh_size > end)
			end = s[i].sh_offset + s[i].sh_size;
	return end;
}

static bool add_entry(struct cu_image *m, const char *name, size_t length)
{
	char **grown = realloc(m->entries, (m->entry_count + 1) * sizeof(*grown));

	if (!grown)
		return false;
	m->entries = grown;
	m->entries[m->entry_count] = strndup(name, length);
	return m->entries[m->entry_count++] != NULL;
}

static const char *symbol_name(const struct cu_image *m, const Elf64_Sym *s)
{
	return s->st_name < m->names_bytes ? m->names + s->st_name : "";
}

static void read_elf(struct cu_image *m)
{
	const Elf64_Ehdr *h = (const void *)m->data;
	const Elf64_Shdr *s = (const void *)(m->data + h->e_shoff);

	for (int i = 0; i < h->e_shnum; i++) {
		if (s[i].sh_type != SHT_SYMTAB || s[i].sh_link >= h->e_shnum)
			continue;
		m->symbols = (const void *)(m->data + s[i].sh_offset);
		m->symbol_count = s[i].sh_size / sizeof(Elf64_Sym);
		m->names = m->data + s[s[i].sh_link].sh_offset;
		m->names_bytes = s[s[i].sh_link].sh_size;
	}
	for (uint64_t i = 0; i < m->symbol_count; i++) {
		const Elf64_Sym *y = &m->symbols[i];

		if (ELF64_ST_TYPE(y->st_info) == STT_FUNC && y->st_other & IS_ENTRY)
			add_entry(m, symbol_name(m, y), strlen(symbol_name(m, y)));
	}
}

static void read_ptx(struct cu_image *m)
{
	static const char word[] = ".entry";
	const char *at = m->data;

	while ((at = strstr(at, word))) {
		at += sizeof(word) - 1;
		at += strspn(at, " \t\r\n");
		add_entry(m, at, strcspn(at, " \t\r\n("));
	}
}

static int kind_of(const char *code)
{
	static const char blanks[] = " \t\r\n";

	if (!memcmp(code, ELFMAG, SELFMAG))
		return ((const Elf64_Ehdr *)(const void *)code)->e_shentsize == sizeof(Elf64_Shdr)
			       ? IMAGE_ELF
			       : IMAGE_OPAQUE;
	if (*code == '/' || *code == '.' || strchr(blanks, *code))
		return IMAGE_PTX;
	return IMAGE_OPAQUE;
}

/* The caller may free his as soon as the call returns, so what is read later is copied. */
struct cu_image *image_load(const void *code, CUresult *rc)
{
	int kind = kind_of(code);
	uint64_t bytes = kind == IMAGE_ELF ? elf_bytes(code) : kind == IMAGE_PTX ? strlen(code) + 1 : 0;
	struct cu_image *m = bytes < MAX_IMAGE_BYTES ? calloc(1, sizeof(*m) + bytes) : NULL;

	*rc = m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	if (!m)
		return NULL;
	m->kind = kind;
	m->bytes = bytes;
	memcpy(m->data, code, bytes);
	if (kind == IMAGE_ELF)
		read_elf(m);
	else if (kind == IMAGE_PTX)
		read_ptx(m);
	return m;
}

char *image_file(const char *path, size_t *bytes)
{
	FILE *f = fopen(path, "re");
	char *text = NULL;
	long size = -1;

	if (f && !fseek(f, 0, SEEK_END))
		size = ftell(f);
	if (size > 0 && (uint64_t)size < MAX_IMAGE_BYTES)
		text = calloc(1, (size_t)size + 1);
	if (text) {
		rewind(f);
		*bytes = fread(text, 1, (size_t)size, f);
	}
	if (f)
		fclose(f);
	return text;
}

void image_free(struct cu_image *m)
{
	for (uint32_t i = 0; m && i < m->entry_count; i++)
		free(m->entries[i]);
	if (m)
		free(m->entries);
	free(m);
}

bool image_has_kernel(const struct cu_image *m, const char *name)
{
	for (uint32_t i = 0; i < m->entry_count; i++)
		if (!strcmp(m->entries[i], name))
			return true;
	return m->kind == IMAGE_OPAQUE;
}

const char *image_kernel(const struct cu_image *m, uint32_t index)
{
	return index < m->entry_count ? m->entries[index] : NULL;
}

bool image_global(const struct cu_image *m, const char *name, uint64_t *bytes)
{
	for (uint64_t i = 0; i < m->symbol_count; i++) {
		const Elf64_Sym *y = &m->symbols[i];

		if (ELF64_ST_TYPE(y->st_info) != STT_OBJECT || strcmp(symbol_name(m, y), name))
			continue;
		*bytes = y->st_size;
		return y->st_size != 0;
	}
	return false;
}
