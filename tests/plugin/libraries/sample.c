/* A plugin for tests that gives "fvlm.attention/1", and is broken in one way for each macro that the build sets. It
 * computes nothing: forward writes the value 1, backward the value 2. C and C++. */
#include <fvlm/fvlm.h>

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
#include <stdexcept>
#endif

#ifndef NAME
#define NAME "sample"
#endif
#ifndef VERSION
#define VERSION "1.0"
#endif
#ifndef MAJOR
#define MAJOR FVLM_ABI_MAJOR
#endif
#ifndef MINOR
#define MINOR FVLM_ABI_MINOR
#endif
#ifndef PLUGIN_SIZE
#define PLUGIN_SIZE sizeof(fvlm_plugin)
#endif
#ifndef TABLE_SIZE
#define TABLE_SIZE sizeof(fvlm_attention_v1)
#endif
#ifndef ENTRY
#define ENTRY fvlm_plugin_entry_v1
#endif
#ifndef TABLE
#define TABLE table
#endif
#ifndef CREATE
#define CREATE create
#endif
#ifndef DESTROY
#define DESTROY destroy
#endif
#ifndef SUPPORTS
#define SUPPORTS supports
#endif
#ifndef REQUIREMENTS
#define REQUIREMENTS requirements
#endif
#ifndef FORWARD
#define FORWARD forward
#endif
#ifndef BACKWARD
#define BACKWARD backward
#endif
#ifndef SCORE
#define SCORE 100
#endif
#ifndef REASON
#define REASON "a sample"
#endif
/* Statements that run at the beginning of each function. */
#ifndef IN_CONSTRUCTOR
#define IN_CONSTRUCTOR
#endif
#ifdef IN_DESTRUCTOR
__attribute__((destructor)) static void destructor(void) {
  IN_DESTRUCTOR;
}
#endif
#ifndef IN_ENTRY
#define IN_ENTRY
#endif
#ifndef IN_TABLE
#define IN_TABLE
#endif
#ifndef IN_SUPPORTS
#define IN_SUPPORTS
#endif
#ifndef IN_FORWARD
#define IN_FORWARD
#endif
#ifndef PLUGIN
#define PLUGIN &plugin
#endif
#ifndef ANSWER
#define ANSWER strcmp(kind, FVLM_ATTENTION_KIND) == 0 ? (const void*)&attention : NULL
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MAYBE_UNUSED __attribute__((unused))

/* Used by some of the statements above; the last is defined nowhere. */
extern int fvlm_test_counter;
int fvlm_test_counter = 0;
extern jmp_buf fvlm_test_jump;
jmp_buf fvlm_test_jump;
void fvlm_test_nowhere(void);
MAYBE_UNUSED static void wait_for_ever(void) {
  for (;;) pause();
}
MAYBE_UNUSED static void leave_a_mark(void) {
  const char* file = getenv("FVLM_TEST_MARK");
  if (file) close(open(file, O_CREAT | O_WRONLY, 0644));
}
extern __thread int fvlm_test_of_thread;
__thread int fvlm_test_of_thread = 7; /* a TLS segment */
MAYBE_UNUSED static void leave_a_child(void) {
  if (fork() == 0) wait_for_ever();
  abort();
}

MAYBE_UNUSED static void panic_like_rust(void) {
  static const char text[] = "\nthread '<unnamed>' panicked at src/lib.rs:10:5:\nindex out of bounds: the len is 3\n"
                             "note: run with `RUST_BACKTRACE=1`\nfatal runtime error: failed to initiate panic\n";
  if (write(2, text, sizeof text - 1) > 0) abort();
}

struct fvlm_instance {
  int unused;
};
static struct fvlm_instance the_instance;

MAYBE_UNUSED static fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance,
                                       fvlm_error* error) {
  (void)config, (void)error;
  *instance = &the_instance;
  return FVLM_OK;
}
MAYBE_UNUSED static void destroy(fvlm_instance* instance) {
  (void)instance;
}

MAYBE_UNUSED static void supports(const fvlm_attention_query* query, fvlm_support* support) {
  (void)query;
  fvlm_answer(support, SCORE, REASON);
  IN_SUPPORTS;
}
MAYBE_UNUSED static fvlm_status requirements(fvlm_instance* instance, const fvlm_attention_query* query,
                                             fvlm_requirements* wanted, fvlm_error* error) {
  (void)instance, (void)query, (void)error;
  memset(wanted, 0, sizeof *wanted);
  wanted->struct_size = sizeof *wanted;
  return FVLM_OK;
}
MAYBE_UNUSED static fvlm_status forward(fvlm_instance* instance, const fvlm_call* call,
                                        const fvlm_attention_query* query, const fvlm_attention_forward* arguments) {
  (void)instance, (void)call, (void)query;
  *(float*)arguments->out->data = 1;
  IN_FORWARD;
  return FVLM_OK;
}
MAYBE_UNUSED static fvlm_status backward(fvlm_instance* instance, const fvlm_call* call,
                                         const fvlm_attention_query* query, const fvlm_attention_backward* arguments) {
  (void)instance, (void)call, (void)query;
  *(float*)arguments->d_q->data = 2;
  return FVLM_OK;
}

MAYBE_UNUSED static const fvlm_attention_v1 attention = {
    {TABLE_SIZE, CREATE, DESTROY}, SUPPORTS, REQUIREMENTS, NULL, FORWARD, BACKWARD, NULL, NULL, NULL, NULL, 0};

const void* fvlm_test_table(const char* kind);
const void* fvlm_test_table(const char* kind) {
  IN_TABLE;
  return ANSWER;
}
#define table fvlm_test_table

MAYBE_UNUSED static const fvlm_plugin plugin = {PLUGIN_SIZE, MAJOR, MINOR, NAME, VERSION, TABLE};
MAYBE_UNUSED static const fvlm_plugin another = {PLUGIN_SIZE, MAJOR, MINOR, NAME, VERSION, TABLE};

__attribute__((constructor)) static void constructor(void) {
  IN_CONSTRUCTOR;
}

#ifdef ENTRY_IS_DATA
FVLM_EXPORT extern const int fvlm_plugin_entry_v1_data __asm__("fvlm_plugin_entry_v1");
const int fvlm_plugin_entry_v1_data = 42;
#else
FVLM_EXPORT const fvlm_plugin* ENTRY(const fvlm_host* host);
const fvlm_plugin* ENTRY(const fvlm_host* host) {
  (void)host;
  IN_ENTRY;
  return PLUGIN;
}
#endif

#ifdef __cplusplus
}
#endif
