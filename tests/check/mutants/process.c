/* First fit for one dimension and more, by a library that does something to its process. FVLM_MUTANT is DEED_in_PLACE:
 * "umask_in_supports" changes the umask whenever supports() is called, "once_umask_in_supports" at the first call. */
#define _GNU_SOURCE
#include "mutant.h"

#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static void ignore(int number) {
  (void)number;
}
static void* idle(void* none) {
  return none;
}
static void* sleep_for_ever(void* none) {
  for (;;) pause();
  return none;
}
static int run_clone(void* none) {
  (void)none;
  return 0;
}

static volatile int done; /* results that nobody needs */

static void change_signals(const char* deed) {
  static char stack[1 << 16];
  struct sigaction action;
  sigset_t set;
  memset(&action, 0, sizeof action);
  action.sa_handler = ignore;
  if (!strcmp(deed, "handles_fpe")) sigaction(SIGFPE, &action, NULL);
  if (!strcmp(deed, "ignores_pipe")) signal(SIGPIPE, SIG_IGN);
  if (!strcmp(deed, "handles_a_real_time_signal")) sigaction(SIGRTMIN + 9, &action, NULL);
  if (!strcmp(deed, "blocks_interrupts"))
    sigemptyset(&set), sigaddset(&set, SIGINT), sigprocmask(SIG_BLOCK, &set, NULL);
  if (!strcmp(deed, "lays_a_stack")) {
    const stack_t other = {stack, 0, sizeof stack};
    sigaltstack(&other, NULL);
  }
  if (!strcmp(deed, "sets_an_alarm")) alarm(3600);
  if (!strcmp(deed, "sets_a_timer")) {
    const struct itimerval often = {{3600, 0}, {3600, 0}};
    setitimer(ITIMER_PROF, &often, NULL);
  }
}

static void change_files(const char* deed) {
  static int next = 200;
  if (!strcmp(deed, "opens")) done = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (!strcmp(deed, "duplicates")) done = dup2(2, next++);
  if (!strcmp(deed, "makes_a_pipe")) {
    int ends[2];
    done = pipe(ends);
  }
  if (!strcmp(deed, "closes_input")) close(0);
  if (!strcmp(deed, "stops_blocking")) fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK);
  if (!strcmp(deed, "prints")) puts("a packer was here");
  if (!strcmp(deed, "complains")) fputs("a packer was here\n", stderr);
}

static void change_environment(const char* deed) {
  static char text[32];
  static int count;
  if (!strcmp(deed, "sets_a_variable")) {
    snprintf(text, sizeof text, "%d", ++count);
    setenv("OMP_NUM_THREADS", text, 1);
  }
  if (!strcmp(deed, "unsets_a_variable")) unsetenv("PATH");
  if (!strcmp(deed, "locale")) setlocale(LC_NUMERIC, "C.UTF-8");
  if (!strcmp(deed, "thread_locale")) uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
  if (!strcmp(deed, "umask")) umask(0);
  if (!strcmp(deed, "folder")) done = chdir("/");
}

static void change_scheduling(const char* deed) {
  struct rlimit limit;
  cpu_set_t all, one;
  if (!strcmp(deed, "affinity") && sched_getaffinity(0, sizeof all, &all) == 0) {
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) ++cpu;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  if (!strcmp(deed, "nice")) done = nice(1);
  if (!strcmp(deed, "limit")) {
    getrlimit(RLIMIT_NOFILE, &limit);
    --limit.rlim_cur;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (!strcmp(deed, "thread_name")) prctl(PR_SET_NAME, "packer");
  if (!strcmp(deed, "not_dumpable")) prctl(PR_SET_DUMPABLE, 0);
  if (!strcmp(deed, "timer_slack")) prctl(PR_SET_TIMERSLACK, 1234567);
  if (!strcmp(deed, "outlives_its_parent")) prctl(PR_SET_PDEATHSIG, 0);
}

static void start_others(const char* deed) {
  static char stack[1 << 16];
  pthread_t thread;
  if (!strcmp(deed, "starts_a_thread") && pthread_create(&thread, NULL, idle, NULL) == 0) pthread_join(thread, NULL);
  if (!strcmp(deed, "leaves_a_thread") && pthread_create(&thread, NULL, sleep_for_ever, NULL) == 0)
    pthread_detach(thread);
  if (!strcmp(deed, "forks")) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
  }
  if (!strcmp(deed, "forks_by_system_call")) {
    const pid_t child = (pid_t)syscall(SYS_fork);
    if (child == 0) syscall(SYS_exit_group, 0);
    waitpid(child, NULL, 0);
  }
  if (!strcmp(deed, "leaves_a_child") && fork() == 0) _exit(0);
  if (!strcmp(deed, "clones")) {
    const pid_t child = clone(run_clone, stack + sizeof stack, SIGCHLD, NULL);
    waitpid(child, NULL, 0);
  }
  if (!strcmp(deed, "runs_a_command")) done = system("true"); /* NOLINT */
}

static void change_float_mode(const char* deed) {
  if (!strcmp(deed, "rounds_up")) fesetround(FE_UPWARD);
#if defined(__x86_64__)
  if (!strcmp(deed, "flushes_to_zero")) _mm_setcsr(_mm_getcsr() | 0x8000);
  if (!strcmp(deed, "takes_denormals_for_zero")) _mm_setcsr(_mm_getcsr() | 0x40);
  if (!strcmp(deed, "traps_division")) _mm_setcsr(_mm_getcsr() & ~0x200u);
  if (!strcmp(deed, "halves_the_precision")) {
    const unsigned short control = 0x007f;
    __asm__ volatile("fldcw %0" : : "m"(control));
  }
#endif
}

static void leak(const char* deed) {
  static char* volatile kept; /* the compiler may leave out memory that nobody sees */
  if (!strcmp(deed, "leaks")) kept = (char*)malloc(24), kept[0] = 1;
  if (!strcmp(deed, "leaks_pages")) {
    kept = (char*)mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (kept != MAP_FAILED) kept[0] = 1;
  }
}

static void at_place(const char* place) {
  static int calls;
  const char* deed_and_place = chosen;
  const int once = strncmp(chosen, "once_", 5) == 0;
  if (once) deed_and_place += 5;
  const char* between = strstr(deed_and_place, "_in_");
  if (!between || strcmp(between + 4, place) != 0 || (once && calls++ > 0)) return;
  char deed[64] = "";
  memcpy(deed, deed_and_place, (size_t)(between - deed_and_place));
  change_signals(deed);
  change_files(deed);
  change_environment(deed);
  change_scheduling(deed);
  start_others(deed);
  change_float_mode(deed);
  leak(deed);
}

/* As the process ends. */
static void at_end(void) {
  if (is("prints_at_exit")) puts("goodbye");
  if (is("crashes_at_exit")) abort();
  if (is("hangs_at_exit"))
    for (;;) pause();
  if (is("ends_with_0_at_exit")) _exit(0);
}
__attribute__((destructor)) static void fall(void) {
  if (is("prints_in_destructor")) puts("goodbye");
  if (is("crashes_in_destructor")) *(volatile int*)8 = 1;
  if (is("hangs_in_destructor"))
    for (;;) pause();
  if (is("ends_with_0_in_destructor")) _exit(0);
}

static const char* refusal(const fvlm_packer_query* q) {
  if (q->dimensions < 1 || q->max_items < 0) return "dimensions has to be positive and max_items not negative";
  for (int32_t d = 0; d < q->dimensions; ++d)
    if (q->capacity[d] < 0) return "a capacity is negative";
  return NULL;
}

static void supports(const fvlm_packer_query* query, fvlm_support* support) {
  at_place("supports");
  const char* no = FVLM_HAS(query, capacity) ? refusal(query) : "the query is too short";
  if (is("writes_the_query_in_supports") && !no) {
    fvlm_packer_query* mine = (fvlm_packer_query*)query;
    const int64_t most = mine->max_items;
    *(volatile int64_t*)&mine->max_items = most + 1;
    *(volatile int64_t*)&mine->max_items = most;
  }
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "first fit");
}

static int fits(const int64_t* size, const int64_t* room, int32_t dimensions) {
  for (int32_t d = 0; d < dimensions; ++d)
    if (size[d] > room[d]) return 0;
  return 1;
}

static fvlm_status place_all(const fvlm_packer_query* query, const fvlm_packer_pack* a, int64_t* left, int64_t* items) {
  const int32_t n = query->dimensions;
  int32_t bins = 0, open = 0;
  for (int64_t i = 0; i < a->item_count; ++i) {
    const int64_t* size = a->sizes + i * n;
    a->bin_of_item[i] = -1;
    if (!fits(size, query->capacity, n)) continue;
    int32_t bin = open;
    while (bin < bins &&
           ((query->max_items > 0 && items[bin] >= query->max_items) || !fits(size, left + (int64_t)bin * n, n)))
      ++bin;
    if (bin == bins) {
      memcpy(left + (int64_t)bin * n, query->capacity, (size_t)n * sizeof *left);
      items[bins++] = 0;
    }
    for (int32_t d = 0; d < n; ++d) left[(int64_t)bin * n + d] -= size[d];
    ++items[bin];
    a->bin_of_item[i] = bin;
    if (bins - open > 100) ++open;
  }
  *a->bin_count = bins;
  return FVLM_OK;
}

static fvlm_status pack(fvlm_instance* instance, const fvlm_packer_query* query, const fvlm_packer_pack* a,
                        fvlm_error* error) {
  (void)instance;
  at_place("pack");
  if (!FVLM_HAS(query, capacity) || !FVLM_HAS(a, bin_count)) {
    at_place("refusing");
    return refuse(error, FVLM_ERROR_ARGUMENT, "a struct is too short");
  }
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  int64_t* left = (int64_t*)malloc((size_t)(a->item_count * query->dimensions + 1) * sizeof *left);
  int64_t* items = (int64_t*)malloc((size_t)(a->item_count + 1) * sizeof *items);
  fvlm_status status = refuse(error, FVLM_ERROR_MEMORY, "no memory");
  if (left && items) status = place_all(query, a, left, items);
  free(left);
  free(items);
  return status;
}

static fvlm_status create_packer(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  at_place("create");
  if (is("writes_the_host") && FVLM_HAS(config, host)) *(volatile uint32_t*)&((fvlm_host*)config->host)->abi_minor = 0;
  if (is("writes_the_config") && FVLM_HAS(config, host)) {
    volatile fvlm_instance_config* mine = (fvlm_instance_config*)config;
    mine->struct_size = mine->struct_size + 1;
    mine->struct_size = mine->struct_size - 1;
  }
  if (!FVLM_HAS(config, host)) at_place("refused_create");
  return create(config, instance, error);
}

static void destroy_packer(fvlm_instance* instance) {
  at_place("destroy");
  destroy(instance);
}

static const fvlm_packer_v1 packer = {{sizeof packer, create_packer, destroy_packer}, supports, pack};

static const void* table_of(const char* kind) {
  at_place("table");
  return strcmp(kind, FVLM_PACKER_KIND) == 0 ? &packer : NULL;
}
static const fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "process_mutant", "1.0", table_of};
FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  at_place("entry");
#ifdef EXIT_HANDLER
  static int registered;
  if (!registered) registered = atexit(at_end) == 0;
#else
  (void)at_end;
#endif
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
__attribute__((constructor)) static void rise(void) {
  chosen = getenv("FVLM_MUTANT") ? getenv("FVLM_MUTANT") : "";
  at_place("constructor");
}
