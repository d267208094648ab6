// @NAME@: AdamW in plain CUDA, as torch.optim.AdamW computes it, in one launch. fvlm/optimizer.h specifies each
// function. For an algorithm of your own, change `algorithm` here and the kind in plugin.toml, then
// hyperparameters, states and step.
#include <fvlm/cuda.hpp>

#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

enum { lr, beta1, beta2, eps, weight_decay };

constexpr int64_t threads_per_segment = 2048; // each handles every threads_per_segment-th element

// Kernel arguments, passed by value: pointers into device memory.
template <class G, class P>
struct Work {
  View<float, 1> master, m, v;
  View<const G, 1> gradient;
  View<P, 1> parameter;            // empty where parameters are float32: the model then reads the master weights
  View<const int64_t, 2> segments; // offset, rows, cols, group
  View<const float, 2> hyper;
  View<const int64_t, 1> step;
  View<const float, 1> scale;
  View<const std::int32_t, 1> skip;
};

template <class G, class P>
__global__ void update(Work<G, P> w) {
  const int64_t s = item_index() / threads_per_segment;
  if (s >= w.segments.size(0) || w.skip(0) != 0) return;
  const int64_t begin = w.segments(s, 0), end = begin + w.segments(s, 1) * w.segments(s, 2);
  const float* const h = w.hyper.row(w.segments(s, 3));
  const double t = static_cast<double>(w.step(0));
  const float step_size = static_cast<float>(h[lr] / (1 - pow(double(h[beta1]), t)));
  const float sqrt_bias_correction2 = static_cast<float>(sqrt(1 - pow(double(h[beta2]), t)));
  for (int64_t i = begin + item_index() % threads_per_segment; i < end; i += threads_per_segment) {
    const float gradient = float(w.gradient(i)) * w.scale(0);
    const float m = w.m(i) + (1 - h[beta1]) * (gradient - w.m(i));
    const float v = h[beta2] * w.v(i) + (1 - h[beta2]) * gradient * gradient;
    const float decayed = w.master(i) - h[lr] * h[weight_decay] * w.master(i);
    const float master = decayed - step_size * m / (sqrtf(v) / sqrt_bias_correction2 + h[eps]);
    w.m(i) = m;
    w.v(i) = v;
    w.master(i) = master;
    if (w.parameter) w.parameter(i) = P(master);
  }
}

class CudaAdamW : public Optimizer {
 public:
  static constexpr const char* algorithm = "adamw";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 10}, {"beta1", 0.9, 0, 1},         {"beta2", 0.999, 0, 1},
      {"eps", 1e-8, 0, 1}, {"weight_decay", 0.01, 0, 1},
  };

  explicit CudaAdamW(const fvlm_instance_config& config) {
    if (Support no = check_device(config.device, 8, 0); no.score == 0) {
      throw Failure(FVLM_ERROR_DEVICE, "%s", no.reason);
    }
  }

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // Checked by supports() and by every call.
  static Support fits(const Query& query) {
    if (!is_one_of<float, BFloat16, Half>(query.gradient_dtype)) {
      return refuse("gradients in %s not supported", name_of(query.gradient_dtype));
    }
    if (!is_one_of<float, BFloat16, Half>(query.parameter_dtype)) {
      return refuse("parameters in %s not supported", name_of(query.parameter_dtype));
    }
    return accept(10, "one thread per element"); // the reference has 1; raise it as this gets faster
  }

  static States states(const Query&) { return {{"m", float32}, {"v", float32}}; }

  void step(const fvlm_call& call, const Query& query, const Step& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.gradient_dtype, [&](auto gradient) {
      dispatch<float, BFloat16, Half>(query.parameter_dtype, [&](auto parameter) {
        using G = typename decltype(gradient)::type;
        using P = typename decltype(parameter)::type;
        Work<G, P> w{};
        w.master = View<float, 1>(arguments.master, "master");
        w.m = View<float, 1>(arguments.state[0], "m");
        w.v = View<float, 1>(arguments.state[1], "v");
        w.gradient = View<const G, 1>(arguments.gradient, "gradient");
        if (arguments.parameter) w.parameter = View<P, 1>(arguments.parameter, "parameter");
        w.segments = View<const int64_t, 2>(arguments.segments, "segments");
        w.hyper = View<const float, 2>(arguments.hyper, "hyper");
        w.step = View<const int64_t, 1>(arguments.step, "step");
        w.scale = View<const float, 1>(arguments.scale, "scale");
        w.skip = View<const std::int32_t, 1>(arguments.skip, "skip");
        launch(call, query.segment_count * threads_per_segment, update<G, P>, w);
      });
    });
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", CudaAdamW)
