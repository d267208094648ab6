// The table of checks and the ordinary trials of each family of kinds.
#pragma once
#include "check/check.h"
#include "check/trial.h"

namespace fvlm::check {

Table library_table();
Table attention_table();
Table loss_table();
Table optimizer_table();
Table packer_table();
Table quantizer_table();
Table kernels_table();
Table video_table();

std::vector<Benchmark> attention_benchmarks();
std::vector<Benchmark> loss_benchmarks();
std::vector<Benchmark> optimizer_benchmarks();
std::vector<Benchmark> packer_benchmarks();
std::vector<Benchmark> quantizer_benchmarks();
std::vector<Benchmark> kernels_benchmarks();

// The trials of a family that the generic checks run. supports() may refuse some of them.
struct CheckedFamily {
  using Trials = std::vector<Trial> (*)(Context&);

  std::string_view name; // "attention"
  Table (*table)();
  // Ordinary shapes, without padding or other edge cases, in the first dtype that the plugin supports.
  Trials typical;
  // Shapes that no vector width divides, and larger ones of several pieces and with shared heads. Not every family has
  // them.
  Trials odd = nullptr, parallel = nullptr;
  // Each dtype and many shapes, odd ones among them: the calls have to agree with the answer of supports().
  Trials sweep = nullptr;
  bool takes_any_rows = false; // the header allows any row stride
  bool on_host = false;        // works on host memory, wherever the others work
};
const CheckedFamily& family_of_kind(std::string_view kind);

std::vector<Trial> attention_trials(Context&);
std::vector<Trial> attention_odd_trials(Context&);
std::vector<Trial> attention_parallel_trials(Context&);
std::vector<Trial> attention_sweep(Context&);
std::vector<Trial> loss_trials(Context&);
std::vector<Trial> loss_odd_trials(Context&);
std::vector<Trial> loss_parallel_trials(Context&);
std::vector<Trial> loss_sweep(Context&);
std::vector<Trial> optimizer_trials(Context&);
std::vector<Trial> optimizer_odd_trials(Context&);
std::vector<Trial> optimizer_sweep(Context&);
std::vector<Trial> packer_trials(Context&);
std::vector<Trial> packer_parallel_trials(Context&); // so many items that two threads pack at the same time
std::vector<Trial> packer_sets(); // ordinary ones, some of which differ in the order of their items alone
std::vector<Trial> quantizer_trials(Context&);
std::vector<Trial> quantizer_odd_trials(Context&);
std::vector<Trial> quantizer_sweep(Context&);
std::vector<Trial> kernels_trials(Context&);
std::vector<Trial> kernels_odd_trials(Context&);
std::vector<Trial> kernels_parallel_trials(Context&);
std::vector<Trial> kernels_sweep(Context&);
std::vector<Trial> video_trials(Context&);

// Those of the context's family; empty where it has none.
std::vector<Trial> typical_trials(Context&);
std::vector<Trial> odd_trials(Context&);
std::vector<Trial> parallel_trials(Context&);
std::vector<Trial> sweep_trials(Context&);
// Trials whose results have to be the same bits in every process.
std::vector<Trial> repeatable_trials(Context&);

} // namespace fvlm::check
