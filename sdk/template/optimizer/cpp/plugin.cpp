// @NAME@: AdamW in plain C++, as torch.optim.AdamW computes it. fvlm/optimizer.h specifies each function. For an
// algorithm of your own, change `algorithm` here and the kind in plugin.toml, then hyperparameters, states and step.
#include <fvlm/fvlm.hpp>

#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

class PlainAdamW : public Optimizer {
 public:
  static constexpr const char* algorithm = "adamw";
  enum { lr, beta1, beta2, eps, weight_decay };
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 10}, {"beta1", 0.9, 0, 1},         {"beta2", 0.999, 0, 1},
      {"eps", 1e-8, 0, 1}, {"weight_decay", 0.01, 0, 1},
  };

  explicit PlainAdamW(const fvlm_instance_config& config) {
    if (config.device.type != FVLM_CPU) throw Failure(FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
  }

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16, Half>(query.gradient_dtype)) {
      return refuse("gradients in %s not supported", name_of(query.gradient_dtype));
    }
    if (!is_one_of<float, BFloat16, Half>(query.parameter_dtype)) {
      return refuse("parameters in %s not supported", name_of(query.parameter_dtype));
    }
    return accept(10, "plain loops"); // the reference has 1; raise it as this gets faster
  }

  static States states(const Query&) { return {{"m", float32}, {"v", float32}}; }

  void step(const fvlm_call& call, const Query& query, const Step& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.gradient_dtype, [&](auto gradient) {
      dispatch<float, BFloat16, Half>(query.parameter_dtype, [&](auto parameter) {
        using G = typename decltype(gradient)::type;
        using P = typename decltype(parameter)::type;
        run_step<G, P>(call, query, arguments);
      });
    });
  }

 private:
  template <class G, class P>
  static void run_step(const fvlm_call& call, const Query& query, const Step& arguments) {
    const View<float, 1> master(arguments.master, "master"), m(arguments.state[0], "m"), v(arguments.state[1], "v");
    const View<const G, 1> gradients(arguments.gradient, "gradient");
    View<P, 1> parameter; // empty where parameters are float32: the model then reads the master weights
    if (arguments.parameter) parameter = View<P, 1>(arguments.parameter, "parameter");
    const View<const float, 2> hyper(arguments.hyper, "hyper");
    const float scale = View<const float, 1>(arguments.scale, "scale")(0);
    const auto t = static_cast<double>(View<const int64_t, 1>(arguments.step, "step")(0));
    if (View<const std::int32_t, 1>(arguments.skip, "skip")(0) != 0) return;

    for (int64_t s = 0; s < query.segment_count; ++s) {
      const fvlm_optimizer_segment& segment = query.segments[s];
      const float* const h = hyper.row(segment.group);
      const auto step_size = static_cast<float>(h[lr] / (1 - std::pow(double(h[beta1]), t)));
      const auto sqrt_bias_correction2 = static_cast<float>(std::sqrt(1 - std::pow(double(h[beta2]), t)));
      parallel_for(call.host, segment.rows * segment.cols, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = segment.offset + begin; i < segment.offset + end; ++i) {
          const float gradient = float(gradients(i)) * scale;
          m(i) += (1 - h[beta1]) * (gradient - m(i));
          v(i) = h[beta2] * v(i) + (1 - h[beta2]) * gradient * gradient;
          const float decayed = master(i) - h[lr] * h[weight_decay] * master(i);
          master(i) = decayed - step_size * m(i) / (std::sqrt(v(i)) / sqrt_bias_correction2 + h[eps]);
          if (parameter) parameter(i) = P(master(i));
        }
      });
    }
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", PlainAdamW)
