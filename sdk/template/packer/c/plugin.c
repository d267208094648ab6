/* @NAME@: first fit in plain C: each item goes into the first bin that has room for it. Short, and packs loosely: a
 * starting point. fvlm/packer.h specifies each function. */
#include <fvlm/packer.h>

#include <stdlib.h>
#include <string.h>

/* Whether an item fits into the remaining room of a bin. */
static int fits(const int64_t* size, const int64_t* room, int32_t dimensions) {
  for (int32_t d = 0; d < dimensions; ++d) {
    if (size[d] > room[d]) return 0;
  }
  return 1;
}

/* The functions of the table. */

struct fvlm_instance {
  fvlm_device device;
};

static fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  if (!FVLM_HAS(config, host)) return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "config: struct_size is too small");
  *instance = (fvlm_instance*)calloc(1, sizeof **instance);
  if (!*instance) return fvlm_fail(error, FVLM_ERROR_MEMORY, "out of memory");
  (*instance)->device = config->device;
  return FVLM_OK;
}

static void destroy(fvlm_instance* instance) {
  free(instance);
}

static void supports(const fvlm_packer_query* query, fvlm_support* support) {
  if (!FVLM_HAS(support, reason)) return;
  if (!FVLM_HAS(query, capacity)) {
    fvlm_answer(support, 0, "query: struct_size is too small");
  } else if (query->dimensions < 1) {
    fvlm_answer(support, 0, "%d dimensions", query->dimensions);
  } else {
    fvlm_answer(support, 10, "first fit"); /* the reference has 1; raise it as this gets better */
  }
}

static fvlm_status pack(fvlm_instance* instance, const fvlm_packer_query* query, const fvlm_packer_pack* arguments,
                        fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, capacity) || !FVLM_HAS(arguments, bin_count)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "pack: struct_size is too small");
  }
  const int32_t dimensions = query->dimensions;
  const size_t items = (size_t)arguments->item_count;
  int64_t* room = (int64_t*)calloc(items + 1, (size_t)dimensions * sizeof *room); /* of each bin, by dimension */
  int64_t* count = (int64_t*)calloc(items + 1, sizeof *count);                    /* of items in each bin */
  if (!room || !count) {
    free(room);
    free(count);
    return fvlm_fail(error, FVLM_ERROR_MEMORY, "out of memory for %zu items", items);
  }
  int32_t bins = 0;
  for (size_t item = 0; item < items; ++item) {
    const int64_t* size = arguments->sizes + item * (size_t)dimensions;
    arguments->bin_of_item[item] = -1;
    if (!fits(size, query->capacity, dimensions)) continue;
    int32_t bin = 0;
    while (bin < bins && ((query->max_items > 0 && count[bin] >= query->max_items) ||
                          !fits(size, room + (size_t)bin * (size_t)dimensions, dimensions))) {
      ++bin;
    }
    int64_t* left = room + (size_t)bin * (size_t)dimensions;
    if (bin == bins) {
      memcpy(left, query->capacity, (size_t)dimensions * sizeof *left);
      ++bins;
    }
    for (int32_t d = 0; d < dimensions; ++d) left[d] -= size[d];
    ++count[bin];
    arguments->bin_of_item[item] = bin;
  }
  *arguments->bin_count = bins;
  free(room);
  free(count);
  return FVLM_OK;
}

static const fvlm_packer_v1 table = {
    .base = {sizeof(fvlm_packer_v1), create, destroy},
    .supports = supports,
    .pack = pack,
};

static const void* find_table(const char* kind) {
  return strcmp(kind, FVLM_PACKER_KIND) == 0 ? &table : NULL;
}

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "@NAME@", "0.1.0", find_table,
  };
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
