/* Exports of a proxy that the library behind it does not have. */
#ifndef GPUPOOL_HIDE_EXPORTS_H
#define GPUPOOL_HIDE_EXPORTS_H

/* Hides from dlsym() the exports of the library that contains `inside` if `real` does not export them. */
void gp_hide_exports(const void *inside, void *real);

#endif
