// @NAME@: linear head and cross-entropy in plain CUDA; logits are computed when they are needed and never stored.
// Correct, short and slow: a starting point. fvlm/loss.h specifies each function.
#include <fvlm/cuda.hpp>

#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

// Kernel arguments, passed by value: pointers into device memory, with shapes and strides.
template <class T, class G>
struct Work {
  View<const T, 2> hidden, weight;
  View<const int64_t, 1> targets;
  View<float, 1> losses, logsumexp; // written by forward
  View<const float, 1> d_losses, logsumexp_read;
  View<T, 2> d_hidden;
  View<G, 2> d_weight;
  float *hidden_sum, *weight_sum; // gradients are summed in float32, whatever their dtype
  int64_t tokens, width, vocab;
  bool accumulate;

  __device__ float logit(int64_t token, int64_t word) const {
    const T *a = hidden.row(token), *b = weight.row(word);
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += float(a[i]) * float(b[i]);
    return sum;
  }

  // The gradient of the objective with respect to a logit: (softmax - one-hot) d_loss.
  __device__ float d_logit(int64_t token, int64_t word) const {
    const float p = expf(logit(token, word) - logsumexp_read(token));
    return (p - (word == targets(token) ? 1 : 0)) * d_losses(token);
  }
};

template <class T>
__device__ void add_scaled(float* sum, float factor, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += factor * float(values[i]);
}

template <class T>
__global__ void forward_tokens(Work<T, T> w) {
  const int64_t token = item_index();
  if (token >= w.tokens) return;
  w.losses(token) = 0;
  if (w.targets(token) < 0) return;
  // Online softmax: the sum of exp(logit - largest) is rescaled whenever a larger logit comes.
  float largest = -INFINITY, sum = 0, target_logit = 0;
  for (int64_t word = 0; word < w.vocab; ++word) {
    const float logit = w.logit(token, word);
    if (word == w.targets(token)) target_logit = logit;
    if (logit > largest) {
      sum *= expf(largest - logit);
      largest = logit;
    }
    sum += expf(logit - largest);
  }
  w.losses(token) = largest + logf(sum) - target_logit;
  if (w.logsumexp) w.logsumexp(token) = largest + logf(sum);
}

template <class T, class G>
__global__ void backward_tokens(Work<T, G> w) {
  const int64_t token = item_index();
  if (token >= w.tokens) return;
  float* sum = w.hidden_sum + token * w.width;
  for (int64_t i = 0; i < w.width; ++i) sum[i] = 0;
  if (w.targets(token) >= 0) {
    for (int64_t word = 0; word < w.vocab; ++word) add_scaled(sum, w.d_logit(token, word), w.weight.row(word), w.width);
  }
  for (int64_t i = 0; i < w.width; ++i) w.d_hidden(token, i) = T(sum[i]);
}

template <class T, class G>
__global__ void backward_words(Work<T, G> w) {
  const int64_t word = item_index();
  if (word >= w.vocab) return;
  float* sum = w.weight_sum + word * w.width;
  for (int64_t i = 0; i < w.width; ++i) sum[i] = w.accumulate ? float(w.d_weight(word, i)) : 0;
  for (int64_t token = 0; token < w.tokens; ++token) {
    if (w.targets(token) >= 0) add_scaled(sum, w.d_logit(token, word), w.hidden.row(token), w.width);
  }
  for (int64_t i = 0; i < w.width; ++i) w.d_weight(word, i) = G(sum[i]);
}

// Rows of `width` contiguous elements.
template <class T, class Tensor>
View<T, 2> rows_of(Tensor* tensor, const char* name) {
  View<T, 2> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

class CudaLoss : public Loss {
 public:
  explicit CudaLoss(const fvlm_instance_config& config) {
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
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    if (query.gradient_dtype != float32 && query.gradient_dtype != query.dtype) {
      return refuse("gradients in %s not supported", name_of(query.gradient_dtype));
    }
    return accept(10, "one thread per row"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    if (query.needs_d_hidden || query.needs_d_weight) requirements.save(float32, {query.tokens}); // logsumexp
    Workspace space;
    space.take<float>(query.needs_d_hidden ? query.tokens * query.width : 0);
    space.take<float>(query.needs_d_weight ? query.vocab * query.width : 0);
    requirements.backward_workspace = space.used();
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      auto w = begin<T, T>(query, arguments);
      w.losses = View<float, 1>(arguments.losses, "losses");
      if (arguments.saved[0]) w.logsumexp = View<float, 1>(arguments.saved[0], "saved[0]");
      launch(call, query.tokens, forward_tokens<T>, w);
    });
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& arguments) {
    require(fits(query));
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
  template <class T, class G>
  static void run_backward(const fvlm_call& call, const Query& query, const Backward& arguments) {
    auto w = begin<T, G>(query, arguments);
    w.d_losses = View<const float, 1>(arguments.d_losses, "d_losses");
    w.logsumexp_read = View<const float, 1>(arguments.saved[0], "saved[0]");
    w.accumulate = arguments.accumulate_d_weight != 0;
    Workspace space(call);
    w.hidden_sum = space.take<float>(query.needs_d_hidden ? query.tokens * query.width : 0).data();
    w.weight_sum = space.take<float>(query.needs_d_weight ? query.vocab * query.width : 0).data();
    if (arguments.d_hidden) {
      w.d_hidden = rows_of<T>(arguments.d_hidden, "d_hidden");
      launch(call, query.tokens, backward_tokens<T, G>, w);
    }
    if (arguments.d_weight) {
      w.d_weight = rows_of<G>(arguments.d_weight, "d_weight");
      launch(call, query.vocab, backward_words<T, G>, w);
    }
  }

  template <class T, class G, class Arguments>
  static Work<T, G> begin(const Query& query, const Arguments& arguments) {
    Work<T, G> w{};
    w.hidden = rows_of<const T>(arguments.hidden, "hidden");
    w.weight = rows_of<const T>(arguments.weight, "weight");
    w.targets = View<const int64_t, 1>(arguments.targets, "targets");
    w.tokens = query.tokens;
    w.width = query.width;
    w.vocab = query.vocab;
    return w;
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", CudaLoss)
