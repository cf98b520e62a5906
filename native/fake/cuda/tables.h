/* Tables of functions without names, which the CUDA runtime asks for by cuGetExportTable. */
#ifndef FAKE_TABLES_H
#define FAKE_TABLES_H

#include "fake.h"

typedef const void *table_entry;
#define TABLE_SIZE(count) ((table_entry)((count) * sizeof(table_entry))) /* most tables begin with their size */

CUresult fake_not_supported(void);
extern const table_entry fake_runtime_table[], fake_integrity_table[];

#endif
