/* Declarations of proxy.c for lookup.c. */
#ifndef GPUPOOL_SHARE_PROXY_H
#define GPUPOOL_SHARE_PROXY_H

#include <stdint.h>

/* The name of an export. */
const char *gp_name(uint32_t which);
/* Asks the real driver for an export and remembers the answer; called where gp_table has none. */
void *gp_resolve(uint32_t which);
/* The export of this library; NULL if the loader does not find it. */
void *gp_export(uint32_t which);

#endif
