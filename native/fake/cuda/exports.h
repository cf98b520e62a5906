/* The address of each export, by its index in generated/index.h. */
#ifndef FAKE_EXPORTS_H
#define FAKE_EXPORTS_H

void *fake_address(unsigned api);

#endif
