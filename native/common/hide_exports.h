/* Exports of a proxy that the library behind it does not have. */
#ifndef GPUPOOL_HIDE_EXPORTS_H
#define GPUPOOL_HIDE_EXPORTS_H

/* Takes out of sight of dlsym() what the library of which `inside` is a part exports and `real` does not. */
void gp_hide_exports(const void *inside, void *real);

#endif
