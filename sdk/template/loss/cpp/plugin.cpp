// @NAME@: linear head and cross-entropy in plain C++; logits are computed when they are needed and never stored.
// Correct, short and slow: a starting point. fvlm/loss.h specifies each function.
#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

template <class T>
float dot(const T* a, const T* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += float(a[i]) * float(b[i]);
  return sum;
}

template <class T>
void add_scaled(float* sum, float factor, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += factor * float(values[i]);
}

// Rows of `width` contiguous elements.
template <class T, class Tensor>
View<T, 2> rows_of(Tensor* tensor, const char* name) {
  View<T, 2> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

class PlainLoss : public Loss {
 public:
  explicit PlainLoss(const fvlm_instance_config& config) {
    if (config.device.type != FVLM_CPU) throw Failure(FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
  }

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    if (query.gradient_dtype != float32 && query.gradient_dtype != query.dtype) {
      return refuse("gradients in %s not supported", name_of(query.gradient_dtype));
    }
    return accept(10, "plain loops"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    if (query.needs_d_hidden || query.needs_d_weight) requirements.save(float32, {query.tokens}); // logsumexp
    Workspace space;
    Sums sums(space, query);
    requirements.backward_workspace = space.used();
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      run_forward<T>(call, query, arguments);
    });
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      if (query.gradient_dtype == float32) {
        run_backward<T, float>(call, query, arguments);
      } else {
        run_backward<T, T>(call, query, arguments);
      }
    });
  }

 private:
  // Gradients are summed in float32, whatever their dtype.
  struct Sums {
    Span<float> hidden, weight;
    Sums(Workspace& space, const Query& query)
        : hidden(space.take<float>(query.needs_d_hidden ? query.tokens * query.width : 0)),
          weight(space.take<float>(query.needs_d_weight ? query.vocab * query.width : 0)) {}
  };

  template <class T>
  static void run_forward(const fvlm_call& call, const Query& query, const Forward& arguments) {
    const auto hidden = rows_of<const T>(arguments.hidden, "hidden"),
               weight = rows_of<const T>(arguments.weight, "weight");
    const View<const int64_t, 1> targets(arguments.targets, "targets");
    const View<float, 1> losses(arguments.losses, "losses");
    View<float, 1> logsumexp;
    if (arguments.saved[0]) logsumexp = View<float, 1>(arguments.saved[0], "saved[0]");

    parallel_for(call.host, query.tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        losses(token) = 0;
        if (targets(token) < 0) continue;
        // Online softmax: the sum of exp(logit - largest) is rescaled whenever a larger logit comes.
        float largest = -INFINITY, sum = 0, target_logit = 0;
        for (int64_t word = 0; word < query.vocab; ++word) {
          const float logit = dot(hidden.row(token), weight.row(word), query.width);
          if (word == targets(token)) target_logit = logit;
          if (logit > largest) {
            sum *= std::exp(largest - logit);
            largest = logit;
          }
          sum += std::exp(logit - largest);
        }
        losses(token) = largest + std::log(sum) - target_logit;
        if (logsumexp) logsumexp(token) = largest + std::log(sum);
      }
    });
  }

  template <class T, class G>
  static void run_backward(const fvlm_call& call, const Query& query, const Backward& arguments) {
    const auto hidden = rows_of<const T>(arguments.hidden, "hidden"),
               weight = rows_of<const T>(arguments.weight, "weight");
    const View<const int64_t, 1> targets(arguments.targets, "targets");
    const View<const float, 1> d_losses(arguments.d_losses, "d_losses"), logsumexp(arguments.saved[0], "saved[0]");
    const int64_t width = query.width;
    Workspace space(call);
    const Sums sums(space, query);

    // The gradient of the objective with respect to a logit: (softmax - one-hot) d_loss.
    const auto d_logit = [&](int64_t token, int64_t word) {
      const float p = std::exp(dot(hidden.row(token), weight.row(word), width) - logsumexp(token));
      return (p - (word == targets(token) ? 1 : 0)) * d_losses(token);
    };

    if (arguments.d_hidden) {
      const auto d_hidden = rows_of<T>(arguments.d_hidden, "d_hidden");
      parallel_for(call.host, query.tokens, 1, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
          float* sum = sums.hidden.data() + token * width;
          std::fill(sum, sum + width, 0.0F);
          if (targets(token) >= 0) {
            for (int64_t word = 0; word < query.vocab; ++word) {
              add_scaled(sum, d_logit(token, word), weight.row(word), width);
            }
          }
          for (int64_t i = 0; i < width; ++i) d_hidden(token, i) = T(sum[i]);
        }
      });
    }
    if (arguments.d_weight) {
      const auto d_weight = rows_of<G>(arguments.d_weight, "d_weight");
      const bool accumulate = arguments.accumulate_d_weight != 0;
      parallel_for(call.host, query.vocab, 16, [&](int64_t begin, int64_t end) {
        for (int64_t word = begin; word < end; ++word) {
          float* sum = sums.weight.data() + word * width;
          for (int64_t i = 0; i < width; ++i) sum[i] = accumulate ? float(d_weight(word, i)) : 0;
          for (int64_t token = 0; token < query.tokens; ++token) {
            if (targets(token) >= 0) add_scaled(sum, d_logit(token, word), hidden.row(token), width);
          }
          for (int64_t i = 0; i < width; ++i) d_weight(word, i) = G(sum[i]);
        }
      });
    }
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", PlainLoss)
