// SPDX-License-Identifier: Apache-2.0
/*
 * Groups of fields, and watches on them.
 *
 * A thread per connection looks at every watched GPU once a period, as the host engine does.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "dcgm_int.h"
#include "nvml_int.h"
#include "simos.h"

static bool is_profiling_supported(void)
{
	const char *wish = getenv("FAIRSCHED_SIM_DCGM_PROFILING");

	return !wish || strcmp(wish, "off") != 0;
}

/* ---- looking ---- */

static void sample_all(struct connection *c)
{
	for (unsigned int i = 0; i < SIM_MAX_DEVICES; i++) {
		struct reading *r = &c->readings[i];
		uint64_t busy_ns, at_ns;

		if (!dcgm.gpus[i])
			continue;
		read_busy(dcgm.gpus[i], &busy_ns, &at_ns);
		if (r->at_ns && at_ns > r->at_ns && busy_ns >= r->busy_ns) {
			r->active_ratio = (double)(busy_ns - r->busy_ns) / (double)(at_ns - r->at_ns);
			r->time_us = (int64_t)(sim_realtime_ns() / 1000);
		}
		r->util_pct = (unsigned int)dcgm.gpus[i]->util_pct;
		r->busy_ns = busy_ns;
		r->at_ns = at_ns;
	}
}

static void *sampler_run(void *arg)
{
	struct connection *c = arg;
	uint64_t due_ns = sim_now_ns();

	pthread_mutex_lock(&dcgm.lock);
	while (!c->is_ending) {
		uint64_t period_ns = UINT64_MAX, wake_ns;
		struct timespec until;

		for (unsigned int i = 0; i < c->watch_count; i++)
			if (c->watches[i].period_ns < period_ns)
				period_ns = c->watches[i].period_ns;
		if (period_ns != UINT64_MAX && sim_now_ns() >= due_ns) {
			sample_all(c);
			due_ns = sim_now_ns() + period_ns;
		}
		wake_ns =
			sim_realtime_ns() + (period_ns == UINT64_MAX ? 1000000000ull : due_ns - sim_now_ns());
		until = (struct timespec){.tv_sec = (time_t)(wake_ns / 1000000000ull),
					  .tv_nsec = (long)(wake_ns % 1000000000ull)};
		pthread_cond_timedwait(&c->changed, &dcgm.lock, &until);
	}
	pthread_mutex_unlock(&dcgm.lock);
	return NULL;
}

void sampler_stop(struct connection *c)
{
	c->is_ending = true;
	if (!c->has_sampler)
		return;
	pthread_cond_signal(&c->changed);
	pthread_mutex_unlock(&dcgm.lock);
	pthread_join(c->sampler, NULL);
	pthread_mutex_lock(&dcgm.lock);
}

/* ---- groups of fields ---- */

DCGM_API dcgmReturn dcgmFieldGroupCreate(dcgmHandle handle, int count, const unsigned short *fields,
					 const char *name, uintptr_t *group)
{
	struct connection *c;
	dcgmReturn rc;

	if (count < 1 || count > MAX_WATCHED || !fields || !name || strlen(name) >= MAX_NAME || !group)
		return DCGM_ST_BADPARAM;
	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	for (unsigned int i = 0; i < MAX_GROUPS; i++)
		if (c->field_groups[i].is_used && !strcmp(c->field_groups[i].name, name))
			return connection_done(DCGM_ST_DUPLICATE_KEY);
	for (unsigned int i = 0; i < MAX_GROUPS; i++) {
		struct field_group *g = &c->field_groups[i];

		if (g->is_used)
			continue;
		*g = (struct field_group){.is_used = true, .count = (unsigned int)count};
		strcpy(g->name, name);
		memcpy(g->fields, fields, (size_t)count * sizeof(*fields));
		*group = i + 1;
		return connection_done(DCGM_ST_OK);
	}
	return connection_done(DCGM_ST_MAX_LIMIT);
}

struct field_group *own_field_group(struct connection *c, uintptr_t group)
{
	if (!group || group > MAX_GROUPS || !c->field_groups[group - 1].is_used)
		return NULL;
	return &c->field_groups[group - 1];
}

DCGM_API dcgmReturn dcgmFieldGroupDestroy(dcgmHandle handle, uintptr_t group)
{
	dcgmReturn rc;
	struct connection *c = connection_use(handle, &rc);

	if (!c)
		return rc;
	if (!own_field_group(c, group))
		return connection_done(DCGM_ST_NO_DATA);
	own_field_group(c, group)->is_used = false;
	return connection_done(DCGM_ST_OK);
}

/* ---- watches ---- */

struct watch *find_watch(struct connection *c, unsigned short field)
{
	for (unsigned int i = 0; i < c->watch_count; i++)
		if (c->watches[i].field == field)
			return &c->watches[i];
	return NULL;
}

static dcgmReturn watch_one(struct connection *c, unsigned short field, uint32_t gpus, bool has_instances,
			    uint64_t period_ns)
{
	struct watch *w = find_watch(c, field);

	if (field >= FIRST_PROFILING_FIELD && !is_profiling_supported())
		return DCGM_ST_PROFILING_NOT_SUPPORTED;
	if (field >= LAST_FIELD)
		return DCGM_ST_UNKNOWN_FIELD;
	if (!w && c->watch_count == MAX_WATCHED)
		return DCGM_ST_MAX_LIMIT;
	if (!w) {
		w = &c->watches[c->watch_count++];
		*w = (struct watch){.field = field, .period_ns = period_ns};
	}
	w->gpus |= gpus;
	w->has_instances |= has_instances;
	if (period_ns < w->period_ns)
		w->period_ns = period_ns;
	return DCGM_ST_OK;
}

static dcgmReturn sampler_begin(struct connection *c)
{
	if (!c->has_sampler && pthread_create(&c->sampler, NULL, sampler_run, c))
		return DCGM_ST_GENERIC_ERROR;
	c->has_sampler = true;
	pthread_cond_signal(&c->changed);
	return DCGM_ST_OK;
}

DCGM_API dcgmReturn dcgmWatchFields(dcgmHandle handle, uintptr_t group, uintptr_t field_group,
				    long long period_us, double keep_s, int keep_samples)
{
	struct field_group *fields;
	struct connection *c;
	uint32_t gpus = 0;
	bool has_instances;
	dcgmReturn rc;

	(void)keep_s;
	(void)keep_samples;
	if (period_us < 1000)
		return DCGM_ST_BADPARAM;
	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	fields = own_field_group(c, field_group);
	has_instances = group == DCGM_GROUP_ALL_INSTANCES;
	if (!fields || (!has_instances && !group_gpus(c, group, &gpus)))
		return connection_done(DCGM_ST_BADPARAM);
	for (unsigned int i = 0; !rc && i < fields->count; i++)
		rc = watch_one(c, fields->fields[i], gpus, has_instances, (uint64_t)period_us * 1000);
	return connection_done(rc ? rc : sampler_begin(c));
}

DCGM_API dcgmReturn dcgmUnwatchFields(dcgmHandle handle, uintptr_t group, uintptr_t field_group)
{
	struct field_group *fields;
	struct connection *c;
	uint32_t gpus;
	dcgmReturn rc;

	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	fields = own_field_group(c, field_group);
	if (!fields || !group_gpus(c, group, &gpus))
		return connection_done(DCGM_ST_BADPARAM);
	for (unsigned int i = 0; i < fields->count; i++)
		if (find_watch(c, fields->fields[i]))
			find_watch(c, fields->fields[i])->gpus &= ~gpus;
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmUpdateAllFields(dcgmHandle handle, int is_waiting)
{
	dcgmReturn rc;
	struct connection *c = connection_use(handle, &rc);

	if (!c)
		return rc;
	if (is_waiting < 0 || is_waiting > 1)
		return connection_done(DCGM_ST_BADPARAM);
	sample_all(c);
	return connection_done(DCGM_ST_OK);
}
