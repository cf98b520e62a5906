/* A hash table of values that hooks store by pointer or handle; it grows with its content and never shrinks. */
#include <stdlib.h>

#include "memory.h"

#define FIRST_SIZE 64u

static size_t bucket(uint64_t key, size_t size) { return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) % size; }

static void link_entry(struct gp_entry **buckets, size_t size, struct gp_entry *entry) {
    size_t at = bucket(entry->key, size);
    entry->next = buckets[at];
    buckets[at] = entry;
}

/* Doubles the size. If the host has no memory for that, chains grow longer instead. */
static void grow(struct gp_table *table) {
    size_t size = table->size == 0 ? FIRST_SIZE : table->size * 2;
    struct gp_entry **buckets = calloc(size, sizeof(struct gp_entry *));
    if (buckets == NULL && table->size != 0)
        return;
    if (buckets == NULL) {
        buckets = &table->only;
        size = 1;
    }
    for (size_t i = 0; i < table->size; i++) {
        for (struct gp_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            link_entry(buckets, size, entry);
        }
    }
    if (table->buckets != &table->only)
        free(table->buckets);
    table->buckets = buckets;
    table->size = size;
}

void gp_table_put(struct gp_table *table, struct gp_entry *entry) {
    if (table->count >= table->size)
        grow(table);
    link_entry(table->buckets, table->size, entry);
    table->count++;
}

struct gp_entry *gp_table_find(const struct gp_table *table, uint64_t key) {
    if (table->size == 0)
        return NULL;
    struct gp_entry *entry = table->buckets[bucket(key, table->size)];
    while (entry != NULL && entry->key != key)
        entry = entry->next;
    return entry;
}

struct gp_entry *gp_table_take(struct gp_table *table, uint64_t key) {
    if (table->size == 0)
        return NULL;
    struct gp_entry **at = &table->buckets[bucket(key, table->size)];
    while (*at != NULL && (*at)->key != key)
        at = &(*at)->next;
    struct gp_entry *entry = *at;
    if (entry != NULL) {
        *at = entry->next;
        table->count--;
    }
    return entry;
}

struct gp_entry *gp_table_take_all(struct gp_table *table, bool (*which)(const struct gp_entry *, const void *),
                                   const void *data) {
    struct gp_entry *taken = NULL;
    for (size_t i = 0; i < table->size; i++) {
        for (struct gp_entry **at = &table->buckets[i]; *at != NULL;) {
            struct gp_entry *entry = *at;
            if (!which(entry, data)) {
                at = &entry->next;
                continue;
            }
            *at = entry->next;
            table->count--;
            entry->next = taken;
            taken = entry;
        }
    }
    return taken;
}

void gp_table_forget(struct gp_table *table) { *table = (struct gp_table){.buckets = NULL}; }
