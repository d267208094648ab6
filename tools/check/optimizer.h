// Optimizer trials: arenas, segments, a few steps, and the float64 formulas of AdamW and Muon.
#pragma once
#include "check/context.h"

#include <fvlm/optimizer.h>

namespace fvlm::check {

struct OptimizerCase {
  at::ScalarType gradient_dtype = at::kFloat;
  at::ScalarType parameter_dtype = at::kFloat;
  at::ScalarType state_dtype = at::kFloat;
  std::vector<std::pair<int64_t, int64_t>> shapes; // of the segments, rows x cols; empty: the plugin's ordinary ones
  std::vector<int64_t> groups;                     // of the segments; empty: all in group 0
  int64_t gap = 0;                                 // elements between segments and at both ends, in which NaN lies
  bool backwards = false;                          // the last segment is listed first
  // name, value, or name, value by group: hyperparameters that differ from the ordinary ones
  std::vector<std::pair<std::string, std::vector<double>>> hyper;
  int steps = 1;
  int64_t first_step = 1;
  double scale = 1;
  int32_t skip = 0;
  double gradient_size = 1; // 0: all zero
  bool gradient_nan = false;
  bool perturbed = false; // inputs differ from the ordinary ones by one rounding
  bool ties = false;      // masters halfway between two numbers of the parameter's type
  int64_t period = 0;     // elements after which masters and gradients repeat; 0: they do not
  at::ScalarType gradient_rounded_to =
      at::kFloat;             // gradients are rounded to this type before they are converted to theirs
  int new_instance_after = 0; // steps; 0: one instance does all
  uint64_t seed = 1;
};

// A trial depends on the plugin's algorithm, states and default hyperparameters. An algorithm that the ABI does not
// describe is compared with the plugin's own plain run, within the difference that perturbing the inputs by one
// rounding makes.
Trial optimizer_trial(Context& context, OptimizerCase optimizer);
std::vector<Trial> optimizer_cases(Context& context, const std::vector<OptimizerCase>& cases);
bool algorithm_known(Context& context);
std::string algorithm_of(Context& context);
// Muon takes matrices alone.
bool takes_vectors(Context& context);

// Which elements lie in segments.
at::Tensor inside_segments(Context& context, OptimizerCase optimizer);

// Rows whose arenas have memory under their segments alone.
Outcome far_segments(Context& context);
Outcome gaps_unmapped(Context& context);

} // namespace fvlm::check
