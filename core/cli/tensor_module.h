// The interface to libfvlm_engine.so, the part of the engine that needs LibTorch. It is loaded on first use, because
// loading LibTorch takes longer than running `plan`.
#pragma once
#include "budget/stage_budget.h"
#include "cli/rank_report.h"
#include "cli/verb.h"
#include "data/stream/data_sizes.h"
#include "model/weights/model_directory.h"
#include "plugin/registry.h"

#include <fvlm/abi.h>

#include <optional>
#include <string>

namespace fvlm::cli {

using StageBudgetFunction = budget::StageBudget(const plan::Plan&, const plan::Stage&, const ModelDescription&,
                                                Registry&, budget::Device, int64_t ranks);

// train::choose_pack, for `requested` bytes of the device's memory, or with 0 for what is free. Nothing: there is no
// such device here.
using ChoosePackFunction = std::optional<budget::ChosenPack>(const plan::Plan&, const plan::Stage&, const DataSizes&,
                                                             const ModelDescription&, Registry&, budget::Device,
                                                             int64_t ranks, int64_t requested);

// The functions that the module offers the program. `version` is compared: both must come from the same build.
struct TensorModule {
  const char* version;
  const fvlm_plugin* (*reference)(const fvlm_host* host); // the engine's own operations, a plugin like any other
  StageBudgetFunction* stage_budget;                      // train::stage_budget
  ChoosePackFunction* choose_pack;
  int (*plugin_check)(Arguments); // the verbs
  int (*trace)(Arguments);
  int (*generate)(Arguments);
  int (*chat)(Arguments);
  int (*export_quantized)(Arguments);
  int (*serve)(Arguments);
  int (*eval)(Arguments);
  int (*bench)(Arguments);
  int (*data)(Arguments);
  int (*train)(Arguments);
  int (*lora)(Arguments);
  RankReport (*rank_report)(); // report_of_ranks
};

// Implemented in the module. The names differ from the program's run_...(), because exported symbols of the program
// would replace them.
int check_plugin(Arguments);
int trace_model(Arguments);
int generate_answers(Arguments);
int chat_with_model(Arguments);
int export_quantized_model(Arguments);
int serve_model(Arguments);
int evaluate_model(Arguments);
int bench_subject(Arguments);
int explore_data(Arguments);
int train_stages(Arguments);
int manage_adapters(Arguments);

// Throws Error(usage) for what is neither "cpu" nor "cuda".
void check_device_name(const std::string& device);
// Initializes LibTorch for tensors on "cpu" or "cuda". Call it before the first tensor is created. Throws Error(usage)
// for other names, Error(device) where there is no such device or other processes occupy it.
void initialize_device(const std::string& device);
// "cuda" where there is a usable GPU, else "cpu", with a warning where a driver is installed nevertheless.
std::string default_device();

// Loads LibTorch and the module. Throws Error(device) when either is missing.
const TensorModule& tensor_module();

// The function of a Verb that the module implements.
template <int (*TensorModule::*verb)(Arguments)>
int run_in_module(Arguments arguments) {
  return (tensor_module().*verb)(arguments);
}

} // namespace fvlm::cli
