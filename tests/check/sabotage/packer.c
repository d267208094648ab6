/* First fit, in the order of reading; one dimension or more. */
#include "common.h"

static const char* refusal(const fvlm_packer_query* q) {
  if (q->dimensions < 1 || q->max_items < 0) return "dimensions has to be positive and max_items not negative";
  for (int32_t d = 0; d < q->dimensions; ++d)
    if (q->capacity[d] < 0) return "a capacity is negative";
  return NULL;
}

static void supports(const fvlm_packer_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, capacity) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "first fit");
}

static fvlm_status pack(fvlm_instance* instance, const fvlm_packer_query* query, const fvlm_packer_pack* a,
                        fvlm_error* error) {
  (void)instance;
  NEED(query, capacity, error);
  NEED(a, bin_count, error);
  const char* no = refusal(query);
  if (no) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  const int64_t n = query->dimensions;
  /* What is left of each bin, and how many items more it takes. */
  int64_t* left = (int64_t*)malloc((size_t)(a->item_count * n + 1) * sizeof *left);
  int64_t* items = (int64_t*)malloc((size_t)(a->item_count + 1) * sizeof *items);
  if (!left || !items) {
    free(left);
    free(items);
    return fvlm_fail(error, FVLM_ERROR_MEMORY, "no memory for %lld bins", (long long)a->item_count);
  }
  int32_t bins = 0, open = 0; /* bins before `open` are as good as full */
  int64_t begin = 0;
#ifdef SABOTAGE_STARVES_THE_FIRST
  begin = a->item_count > 1 ? 1 : 0;
#endif
#ifdef SABOTAGE_REMEMBERS
  static int calls;
  begin = a->item_count > 1 && calls++ % 2 ? a->item_count - 1 : 0;
#endif
  for (int64_t turn = 0; turn < a->item_count; ++turn) {
    const int64_t i = (turn + begin) % a->item_count;
    const int64_t* size = a->sizes + i * n;
    int fits_empty = 1;
    for (int64_t d = 0; d < n; ++d) fits_empty = fits_empty && size[d] <= query->capacity[d];
#ifdef SABOTAGE_PLACES_OVERSIZED
    if (!fits_empty) {
      a->bin_of_item[i] = 0;
      if (bins == 0) {
        for (int64_t d = 0; d < n; ++d) left[d] = query->capacity[d];
        items[0] = 0;
        bins = 1;
      }
      continue;
    }
#endif
    if (!fits_empty) {
      a->bin_of_item[i] = -1;
      continue;
    }
    int32_t bin = open;
    for (; bin < bins; ++bin) {
      int fits = query->max_items == 0 || items[bin] < query->max_items;
#ifdef SABOTAGE_IGNORES_MAX_ITEMS
      fits = 1;
#endif
      for (int64_t d = 0; d < n; ++d) {
#ifdef SABOTAGE_OVERFILLS
        fits = fits && size[d] <= left[bin * n + d] + 1;
#elif defined(SABOTAGE_LOOKS_AT_ONE_DIMENSION)
        fits = fits && (d > 0 || size[d] <= left[bin * n + d]);
#else
        fits = fits && size[d] <= left[bin * n + d];
#endif
      }
      if (fits) break;
    }
    if (bin == bins) {
      for (int64_t d = 0; d < n; ++d) left[bin * n + d] = query->capacity[d];
      items[bins++] = 0;
    }
    for (int64_t d = 0; d < n; ++d) left[bin * n + d] -= size[d];
    ++items[bin];
    a->bin_of_item[i] = bin;
    /* A hundred bins stay open: many items take time in proportion. */
    if (bins - open > 100) ++open;
  }
#ifdef SABOTAGE_ADDS_AN_EMPTY_BIN
  if (bins > 0) ++bins;
#endif
  *a->bin_count = bins;
  free(left);
  free(items);
  return FVLM_OK;
}

static const fvlm_packer_v1 packer = {{sizeof packer, create_instance, destroy_instance}, supports, pack};

PLUGIN("packer", FVLM_PACKER_KIND, packer)
