/* fvlm/packer.h: which samples share a pack (multi-dimensional bin packing). Kind "fvlm.packer/1". Host memory only.
 *
 * A pure function: the same arguments give the same bins on every machine. Item i takes sizes[i * dimensions + d] of
 * dimension d (frames, tokens). A bin holds at most max_items items and capacity[d] of each dimension; a dimension of
 * capacity 0 only fits items of size 0. Sizes and capacities may be as large as the largest int64, so their sums may
 * overflow. All arrays are contiguous and in host memory; empty ones may be NULL. Items are in the order in which they
 * were read. The first item that fits an empty bin at all is in bin 0: the engine consumes bin 0 and calls again with
 * what is left and newly read samples, and so never starves a sample. Capacities and max_items may differ from call to
 * call. */
#ifndef FVLM_PACKER_H
#define FVLM_PACKER_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_PACKER_KIND "fvlm.packer/1"

typedef struct fvlm_packer_query {
  uint32_t struct_size;
  int32_t dimensions;      /* 1 or more */
  int64_t max_items;       /* per bin; 0: no limit */
  const int64_t* capacity; /* [dimensions], none negative */
} fvlm_packer_query;

typedef struct fvlm_packer_pack {
  uint32_t struct_size;
  int64_t item_count;
  const int64_t* sizes; /* [item_count, dimensions], none negative */
  uint64_t seed;
  int32_t* bin_of_item; /* out [item_count]: 0 to bin_count - 1, or -1 for an item larger than an empty bin */
  int32_t* bin_count;   /* out: number of bins; none is empty, so 0 where no item fits */
} fvlm_packer_pack;

typedef struct fvlm_packer_v1 {
  fvlm_table base;

  /* Whether bins like these are supported, and how well. [any thread] */
  void (*supports)(const fvlm_packer_query* query, fvlm_support* support);

  /* Assigns items to bins. May allocate host memory. [any thread], but never two calls of one instance at once. */
  fvlm_status (*pack)(fvlm_instance* instance, const fvlm_packer_query* query, const fvlm_packer_pack* arguments,
                      fvlm_error* error);
} fvlm_packer_v1;

#ifdef __cplusplus
}
#endif
#endif
