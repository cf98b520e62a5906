/* The real library behind a proxy. */
#ifndef GPUPOOL_REAL_LIBRARY_H
#define GPUPOOL_REAL_LIBRARY_H

/* Opens the real library, bound to its own exports: at `path` if given (then nowhere else), else at the place in the
 * environment's `variable`, else in the folders where drivers are installed. `own` is an export of the proxy, named
 * `own_name`: a library in which that name leads back to the proxy is the proxy itself and is skipped. Returns NULL if
 * there is none. */
void *gp_open_real_library(const char *path, const char *variable, const char *soname, const char *own_name,
                           const void *own);

#endif
