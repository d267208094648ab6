// plugin.cpp: torch.optim.AdamW over flat buffers on the CPU. One pass updates moments, master weights and their
// rounded copy.
#include "adamw.h"

namespace fvlm::plugins {
namespace {

using sdk::Support, sdk::States;

constexpr std::int64_t grain = 1 << 15;

class Adamw : public sdk::Optimizer {
 public:
  static constexpr const char* algorithm = "adamw";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1e3},   {"beta1", 0.9, 0, 0.9999999},   {"beta2", 0.999, 0, 0.9999999},
      {"eps", 1e-8, 0, 1e-1}, {"weight_decay", 1e-2, 0, 1e3},
  };

  explicit Adamw(const fvlm_instance_config&) : level_(cpu_level()) {}

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return sdk::refuse("runs on the CPU only");
    if (Support no = fits_arena(query); no.score == 0) return no;
    return sdk::accept(100, "one pass, %s", name_of(cpu_level()));
  }

  // v stays float32: with beta2 = 0.999 a step changes it by less than half a unit in the last place of bfloat16, so it
  // would never change.
  static States states(const Query& query) {
    const bool bfloat16_moments = query.state_dtype == sdk::bfloat16;
    return {{"m", bfloat16_moments ? sdk::bfloat16 : sdk::float32}, {"v", sdk::float32}};
  }

  void step(const fvlm_call& call, const Query& query, const Step& arguments) {
    check_segments(query);
    const StepScalars scalars(query, arguments, std::size(hyperparameters));
    if (scalars.skip) return;
    with_element_types(query, states(query).state[0].dtype, [&]<class Gradient, class Copy, class Moment>() {
      update<Gradient, Copy, Moment>(call, query, arguments, scalars);
    });
  }

 private:
  template <class Gradient, class Copy, class Moment>
  void update(const fvlm_call& call, const Query& query, const Step& arguments, const StepScalars& scalars) const {
    using Kernel = AdamwKernel<Gradient, Copy, Moment>;
    const std::int64_t n = query.elements;
    float* master = flat<float>(arguments.master, "master", n);
    Copy* copy = nullptr;
    if constexpr (!std::is_same_v<Copy, NoCopy>) copy = flat<Copy>(arguments.parameter, "parameter", n);
    const Gradient* gradient = flat<const Gradient>(arguments.gradient, "gradient", n);
    Moment* exp_avg = flat<Moment>(arguments.state[0], "m", n);
    float* exp_avg_sq = flat<float>(arguments.state[1], "v", n);
    const auto kernel = for_level<Kernel>(level_);
    for_each_run(
        call.host, query, grain, [&](const fvlm_optimizer_segment& segment, std::int64_t at, std::int64_t size) {
          const float* h = scalars.hyper + segment.group * static_cast<std::int64_t>(std::size(hyperparameters));
          kernel({AdamwCoefficients(h[0], h[1], h[2], h[3], h[4], scalars.step, scalars.scale), size, master + at,
                  copy ? copy + at : nullptr, gradient + at, exp_avg + at, exp_avg_sq + at});
        });
  }

  CpuLevel level_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("optimizer-adamw", "1.0.0", fvlm::plugins::Adamw)
