/* See bind_to_itself.c. */
#ifndef GPUPOOL_BIND_TO_ITSELF_H
#define GPUPOOL_BIND_TO_ITSELF_H

#include <dlfcn.h>
#include <stdbool.h>

/* Makes calls of a loaded library (a handle of dlopen) to its own exported functions with this prefix reach these
 * functions, where the loader has bound them to another library. Call it before any function of the library. */
void gp_bind_to_itself(void *library, const char *prefix);

#endif
