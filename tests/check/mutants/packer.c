/* First fit in the order of reading, for any number of dimensions. The seed and the world count for nothing, unless a
 * defect lets one of them say in which bin an item goes that would fit several. */
#define _GNU_SOURCE
#include "mutant.h"

#include <pthread.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const fvlm_host* engine;
static int64_t calls_of_all;
static int64_t shared[1 << 16];
static uint64_t drawn; /* what one defect took as the library was opened */

__attribute__((constructor)) static void draw(void) {
  if (is("opens_by_time")) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    drawn = (uint64_t)now.tv_nsec;
  }
}

static uint64_t sum_of(const char* text) {
  uint64_t sum = 0;
  for (; text && *text; ++text) sum = sum * 31 + (unsigned char)*text;
  return sum;
}

extern char** environ;

/* Which of the bins that would do is taken: 0, but for a defect. */
static uint64_t choice(fvlm_instance* instance, const void* memory) {
  struct timespec spec = {0, 0};
  struct timeval day = {0, 0};
  char text[512] = "";
  uint64_t number = 0;
  if (is("by_time")) return (uint64_t)time(NULL);
  if (is("by_clock")) return clock_gettime(CLOCK_MONOTONIC, &spec), (uint64_t)spec.tv_nsec / 64;
  if (is("by_day")) return gettimeofday(&day, NULL), (uint64_t)day.tv_usec;
  if (is("by_pid")) return (uint64_t)getpid();
  if (is("by_system_call")) return (uint64_t)syscall(SYS_getpid);
  if (is("by_parent")) return (uint64_t)getppid();
  if (is("by_thread")) return (uint64_t)pthread_self() >> 12;
  if (is("by_address_of_memory")) return (uint64_t)(uintptr_t)memory >> 12;
  if (is("by_address_of_instance")) return (uint64_t)(uintptr_t)instance >> 4;
  if (is("by_address_of_code")) return (uint64_t)(uintptr_t)&choice >> 12;
  if (is("by_address_of_stack")) return (uint64_t)(uintptr_t)&spec >> 12;
  if (is("by_length_of_a_variable")) return getenv("HOME") ? strlen(getenv("HOME")) : 0;
  if (is("by_number_of_variables")) {
    for (char** variable = environ; *variable; ++variable) ++number;
    return number;
  }
  if (is("by_host")) return gethostname(text, sizeof text) == 0 ? sum_of(text) : 0;
  if (is("by_processors")) return (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
  if (is("by_environment")) return sum_of(getenv("USER"));
  if (is("by_all_variables")) {
    for (char** variable = environ; *variable; ++variable) number += sum_of(*variable);
    return number;
  }
  if (is("by_folder")) return getcwd(text, sizeof text) ? sum_of(text) : 0;
  if (is("by_threads")) return (uint64_t)engine->parallel_threads(engine);
  if (is("by_rand")) return (uint64_t)rand();
  if (is("by_random")) return getrandom(&number, sizeof number, 0) > 0 ? number : 0;
  if (is("by_loader")) return *(const uint64_t*)getauxval(AT_RANDOM);
  if (is("by_calls_of_all")) return (uint64_t)calls_of_all++;
  return drawn;
}

static int drawn_from_world(void) {
  return strncmp(chosen, "by_", 3) == 0 || is("opens_by_time");
}

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

static int fits_in(const fvlm_packer_query* query, const int64_t* size, const int64_t* left) {
  for (int32_t d = 0; d < query->dimensions; ++d) {
    if ((is("knows_4_dimensions") && d >= 4) || (is("knows_16_dimensions") && d >= 16)) break;
    if (is("keeps_sizes_in_32_bits") ? (int32_t)size[d] > (int32_t)left[d] : size[d] > left[d]) return 0;
  }
  return 1;
}

static fvlm_status pack(fvlm_instance* instance, const fvlm_packer_query* query, const fvlm_packer_pack* a,
                        fvlm_error* error) {
  NEED(query, capacity, error);
  NEED(a, bin_count, error);
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  const int64_t n = query->dimensions;
  int64_t* left = (int64_t*)malloc((size_t)(a->item_count * n + 1) * sizeof *left);
  int64_t* items = (int64_t*)malloc((size_t)(a->item_count + 1) * sizeof *items);
  if (!left || !items) {
    free(left), free(items);
    return refuse(error, FVLM_ERROR_MEMORY, "no memory");
  }
  int64_t* sizes = (int64_t*)a->sizes;
  double total = 0;
  for (int64_t i = 0; i < a->item_count * n; ++i) total += (double)sizes[i];
  if (is("keeps_sizes_by_totals") && a->item_count * n <= 1 << 16) {
    if (instance->kept_rows != a->item_count * n || instance->total != total)
      memcpy(shared, sizes, (size_t)(a->item_count * n) * sizeof *sizes);
    instance->kept_rows = a->item_count * n, instance->total = total;
    sizes = shared;
  }
  if (is("shares_scratch") && a->item_count * n <= 1 << 16) {
    memcpy(shared, sizes, (size_t)(a->item_count * n) * sizeof *sizes);
    sizes = shared;
  }
  if (is("writes_sizes_and_puts_back") && a->item_count > 0) {
    const int64_t first = sizes[0];
    *(volatile int64_t*)sizes = 0;
    *(volatile int64_t*)sizes = first;
  }
  const uint64_t chosen_one = choice(instance, left);
  int32_t bins = 0, open = 0;
  for (int64_t turn = 0; turn < a->item_count; ++turn) {
    int64_t i = turn;
    if (is("starves_the_first_of_many") && a->item_count > 256) i = a->item_count - 1 - turn;
    const int64_t* size = sizes + i * n;
    if (!is("leaves_oversized_unwritten")) a->bin_of_item[i] = -1;
    if (!fits_in(query, size, query->capacity)) continue;
    int32_t bin = open, second = -1;
    for (; bin < bins; ++bin) {
      int room = query->max_items == 0 || items[bin] < query->max_items;
      if (is("knows_64_items_a_bin") && query->max_items > 64) room = 1;
      if (room && fits_in(query, size, left + bin * n)) {
        /* Half of the items go into the next bin that would do: which ones, the lower bits of the choice say in turn.
         */
        if (((chosen_one >> i % 16) ^ (uint64_t)i) % 2 == 0 || !drawn_from_world()) break;
        if (second >= 0) break;
        second = bin;
      }
    }
    if (bin == bins && second >= 0) bin = second;
    if (bin == bins) {
      memcpy(left + bin * n, query->capacity, (size_t)n * sizeof *left);
      items[bins++] = 0;
    }
    for (int64_t d = 0; d < n; ++d) left[bin * n + d] -= size[d];
    ++items[bin];
    a->bin_of_item[i] = is("counts_bins_in_16_bits") ? (int16_t)bin : bin;
    if (bins - open > 100) ++open;
  }
  *a->bin_count = bins;
  free(left), free(items);
  return FVLM_OK;
}

static fvlm_status create_packer(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  const fvlm_status status = create(config, instance, error);
  if (status == FVLM_OK) engine = config->host;
  return status;
}

static const fvlm_packer_v1 packer = {{sizeof packer, create_packer, destroy}, supports, pack};

PLUGIN("packer_mutant", FVLM_PACKER_KIND, packer)
