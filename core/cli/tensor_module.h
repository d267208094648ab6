// The part of the engine that needs LibTorch: libfvlm_engine.so, loaded on first use. Loading LibTorch takes longer
// than `plan` does, so the program links none of it.
#pragma once
#include "cli/verb.h"

#include <fvlm/abi.h>

#include <string>

namespace fvlm::cli {

// What the module offers the program. Both come from one build; `version` makes sure of it.
struct TensorModule {
  const char* version;
  const fvlm_plugin* (*reference)(const fvlm_host* host); // the engine's own operations, a plugin like any other
  int (*plugin_check)(Arguments);                         // the verbs
  int (*trace)(Arguments);
  int (*generate)(Arguments);
  int (*eval)(Arguments);
  int (*bench)(Arguments);
  int (*data)(Arguments);
  int (*train)(Arguments);
};

// The module's own; other names than the program's, because our symbols interpose.
int check_plugin(Arguments);
int trace_model(Arguments);
int generate_answers(Arguments);
int evaluate_model(Arguments);
int bench_subject(Arguments);
int bench_data(Arguments);
int bench_dpo(Arguments);
int bench_op(Arguments);
int bench_profile(Arguments);
int bench_ragged(Arguments);
int bench_step(Arguments);
int explore_data(Arguments);
int train_stages(Arguments);

// Throws Error(usage) for what is neither "cpu" nor "cuda".
void check_device_name(const std::string& device);
// Makes LibTorch ready for tensors on "cpu" or "cuda"; before the first tensor is made. Throws Error(usage) for other
// names, Error(device) where there is no such device or others hold it.
void use_device(const std::string& device);
// "cuda" where there is a device, else "cpu", with a warning where there is a driver nevertheless.
std::string best_device();

// Loads LibTorch and the module. Throws Error(device) when either is missing.
const TensorModule& tensor_module();

} // namespace fvlm::cli
