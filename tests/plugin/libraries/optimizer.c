/* A plugin for tests that gives "fvlm.optimizer/1:sgd", broken where the build says so. */
#include <fvlm/fvlm.h>

#include <string.h>

#ifndef ALGORITHM
#define ALGORITHM "sgd"
#endif
#ifndef HYPERPARAMETERS
#define HYPERPARAMETERS hyperparameters
#endif
#ifndef HYPERPARAMETER_COUNT
#define HYPERPARAMETER_COUNT 2
#endif
#ifndef FIRST
#define FIRST                                                                                                          \
  { "lr", 0.1, 0, 10 }
#endif
#ifndef STATE_COUNT
#define STATE_COUNT 1
#endif
#ifndef STATE_NAME
#define STATE_NAME "momentum"
#endif
#ifndef STEP
#define STEP step
#endif

static fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  (void)config, (void)error;
  *instance = NULL;
  return FVLM_OK;
}
static void destroy(fvlm_instance* instance) {
  (void)instance;
}
static void supports(const fvlm_optimizer_query* query, fvlm_support* support) {
  (void)query;
  fvlm_answer(support, 100, "plain loops");
}
static int32_t states(const fvlm_optimizer_query* query, fvlm_optimizer_state* out) {
  int32_t i;
  for (i = 0; i < STATE_COUNT; ++i) {
    out[i].name = STATE_NAME;
    out[i].dtype = query->state_dtype;
  }
  return STATE_COUNT;
}
static fvlm_status requirements(fvlm_instance* instance, const fvlm_optimizer_query* query, fvlm_requirements* wanted,
                                fvlm_error* error) {
  (void)instance, (void)query, (void)error;
  memset(wanted, 0, sizeof *wanted);
  wanted->struct_size = sizeof *wanted;
  return FVLM_OK;
}
static fvlm_status step(fvlm_instance* instance, const fvlm_call* call, const fvlm_optimizer_query* query,
                        const fvlm_optimizer_step* arguments) {
  (void)instance, (void)call, (void)query, (void)arguments;
  return FVLM_OK;
}

static const fvlm_hyperparameter hyperparameters[] = {FIRST, {"momentum", 0.9, 0, 1}};
FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host);
static fvlm_optimizer_v1 optimizer;
static const void* table(const char* kind) {
  return strcmp(kind, FVLM_OPTIMIZER_KIND("sgd")) == 0 ? &optimizer : NULL;
}
static const fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "sample", "1.0", table};

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  (void)host, (void)step, (void)hyperparameters;
  optimizer.base.struct_size = sizeof optimizer;
  optimizer.base.create = create;
  optimizer.base.destroy = destroy;
  optimizer.algorithm = ALGORITHM;
  optimizer.hyperparameters = HYPERPARAMETERS;
  optimizer.hyperparameter_count = HYPERPARAMETER_COUNT;
  optimizer.supports = supports;
  optimizer.states = states;
  optimizer.requirements = requirements;
  optimizer.step = STEP;
  return &plugin;
}
