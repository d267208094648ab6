/* A plugin for tests that gives "fvlm.kernels/1" with rmsnorm, or less where the build says so. */
#include <fvlm/fvlm.h>

#include <string.h>

#ifndef RMSNORM_FORWARD
#define RMSNORM_FORWARD norm_forward
#endif
#ifndef RMSNORM_BACKWARD
#define RMSNORM_BACKWARD norm_backward
#endif
#ifndef LINEAR_WEIGHT_GRADIENT
#define LINEAR_FORWARD NULL
#define LINEAR_INPUT_GRADIENT NULL
#define LINEAR_WEIGHT_GRADIENT NULL
#endif
#ifndef SCORE
#define SCORE (query->op == FVLM_OP_RMSNORM ? 100 : 0)
#endif

static fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  (void)config, (void)error;
  *instance = NULL;
  return FVLM_OK;
}
static void destroy(fvlm_instance* instance) {
  (void)instance;
}
static void supports(const fvlm_kernels_query* query, fvlm_support* support) {
  (void)query;
  fvlm_answer(support, SCORE, "only rmsnorm");
}
static fvlm_status requirements(fvlm_instance* instance, const fvlm_kernels_query* query, fvlm_requirements* wanted,
                                fvlm_error* error) {
  (void)instance, (void)query, (void)error;
  memset(wanted, 0, sizeof *wanted);
  wanted->struct_size = sizeof *wanted;
  return FVLM_OK;
}
static fvlm_status norm_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                const fvlm_norm_forward* arguments) {
  (void)instance, (void)call, (void)query, (void)arguments;
  return FVLM_OK;
}
static fvlm_status norm_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                 const fvlm_norm_backward* arguments) {
  (void)instance, (void)call, (void)query, (void)arguments;
  return FVLM_OK;
}
static fvlm_status linear_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                  const fvlm_linear_forward* arguments) {
  (void)instance, (void)call, (void)query, (void)arguments;
  return FVLM_OK;
}
static fvlm_status linear_input_gradient(fvlm_instance* instance, const fvlm_call* call,
                                         const fvlm_kernels_query* query, const fvlm_linear_input_gradient* arguments) {
  (void)instance, (void)call, (void)query, (void)arguments;
  return FVLM_OK;
}

FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host);
static fvlm_kernels_v1 kernels;
static const void* table(const char* kind) {
  return strcmp(kind, FVLM_KERNELS_KIND) == 0 ? &kernels : NULL;
}
static const fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "sample", "1.0", table};

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  (void)host, (void)norm_forward, (void)norm_backward, (void)linear_forward, (void)linear_input_gradient;
  kernels.base.struct_size = sizeof kernels;
  kernels.base.create = create;
  kernels.base.destroy = destroy;
  kernels.supports = supports;
  kernels.requirements = requirements;
  kernels.rmsnorm_forward = RMSNORM_FORWARD;
  kernels.rmsnorm_backward = RMSNORM_BACKWARD;
  kernels.linear_forward = LINEAR_FORWARD;
  kernels.linear_input_gradient = LINEAR_INPUT_GRADIENT;
  kernels.linear_weight_gradient = LINEAR_WEIGHT_GRADIENT;
  return &plugin;
}
