// optimizer-cuda: torch.optim.AdamW over a flat arena, in one launch and one pass: moments, master and rounded copy.
#include "adamw.h"
#include "common/arena.h"

namespace fvlm::plugins {
namespace {

using sdk::BFloat16, sdk::Half, sdk::Support, sdk::States;

class Adamw : public sdk::Optimizer {
 public:
  static constexpr const char* algorithm = "adamw";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1e3},   {"beta1", 0.9, 0, 0.9999999},   {"beta2", 0.999, 0, 0.9999999},
      {"eps", 1e-8, 0, 1e-1}, {"weight_decay", 1e-2, 0, 1e3},
  };

  explicit Adamw(const fvlm_instance_config& config) {
    if (Support no = sdk::check_device(config.device, 8, 0); no.score == 0)
      throw sdk::Failure(FVLM_ERROR_DEVICE, "%s", no.reason);
  }

  static Support supports(const Query& query) {
    if (Support no = sdk::check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // v stays float32: with beta2 = 0.999 a step moves it by less than half of bfloat16's spacing, so it would freeze.
  static States states(const Query& query) {
    const bool narrow = query.state_dtype == sdk::bfloat16;
    return {{"m", narrow ? sdk::bfloat16 : sdk::float32}, {"v", sdk::float32}};
  }

  void step(const fvlm_call& call, const Query& query, const Step& arguments) const {
    sdk::require(fits(query));
    const std::int64_t n = query.elements;
    const AdamwTypes types{query.gradient_dtype, query.parameter_dtype, states(query).state[0].dtype};
    AdamwStep step{};
    step.master = flat<float>(arguments.master, "master", n);
    if (types.copy != sdk::float32) step.copy = untyped(arguments.parameter, types.copy, "parameter", n);
    step.gradient = untyped(arguments.gradient, types.gradient, "gradient", n);
    step.first = untyped(arguments.state[0], types.first, "m", n);
    step.second = flat<float>(arguments.state[1], "v", n);
    step.segments = reinterpret_cast<const fvlm_optimizer_segment*>(
        matrix<const std::int64_t>(arguments.segments, "segments", query.segment_count, 4));
    step.hyper = matrix<const float>(arguments.hyper, "hyper", query.group_count, std::size(hyperparameters));
    step.step = flat<const std::int64_t>(arguments.step, "step", 1);
    step.scale = flat<const float>(arguments.scale, "scale", 1);
    step.skip = flat<const std::int32_t>(arguments.skip, "skip", 1);
    step.segment_count = query.segment_count;
    step.elements = n;
    adamw(sdk::stream_of(call), types, step);
  }

 private:
  // What calls refuse as well.
  static Support fits(const Query& query) {
    if (!sdk::is_one_of<float, BFloat16, Half>(query.gradient_dtype))
      return sdk::refuse("gradients in %s not supported", sdk::name_of(query.gradient_dtype));
    if (!sdk::is_one_of<float, BFloat16, Half>(query.parameter_dtype))
      return sdk::refuse("parameters in %s not supported", sdk::name_of(query.parameter_dtype));
    check_segments(query);
    return sdk::accept(300, "one launch, one pass");
  }

  static void* untyped(const fvlm_tensor* tensor, fvlm_dtype dtype, const char* name, std::int64_t elements) {
    void* data = nullptr;
    sdk::dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
      using Element = typename decltype(element)::type;
      data = const_cast<Element*>(flat<const Element>(tensor, name, elements));
    });
    return data;
  }

  template <class Element, class Tensor>
  static Element* matrix(Tensor* tensor, const char* name, std::int64_t rows, std::int64_t cols) {
    const sdk::View<Element, 2> view(tensor, name);
    if (view.size(0) != rows || view.size(1) != cols || !view.contiguous())
      throw sdk::Failure(FVLM_ERROR_ARGUMENT, "%s: %lld x %lld values expected, got %lld x %lld", name,
                         static_cast<long long>(rows), static_cast<long long>(cols),
                         static_cast<long long>(view.size(0)), static_cast<long long>(view.size(1)));
    return view.data();
  }
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("optimizer-cuda", "0.1.0", fvlm::plugins::Adamw)
