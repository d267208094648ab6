// @NAME@: two of the small operations in plain CUDA: rmsnorm and swiglu. fvlm/kernels.h specifies each function.
// To add an operation, write the member function with its name in the table.
#include <fvlm/cuda.hpp>

#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

template <class T>
__global__ void norm_rows(View<const T, 2> x, View<const T, 2> residual, View<const T, 1> weight, View<T, 2> y,
                          View<T, 2> sum, View<float, 1> inverse, float epsilon) {
  const int64_t row = item_index(), width = x.size(1);
  if (row >= x.size(0)) return;
  const T* s = x.row(row);
  if (sum) {
    for (int64_t i = 0; i < width; ++i) sum(row, i) = T(float(x(row, i)) + float(residual(row, i)));
    s = sum.row(row); // the rounded sum, which backward uses
  }
  float squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += float(s[i]) * float(s[i]);
  const float scale = 1 / sqrtf(squares / static_cast<float>(width) + epsilon);
  for (int64_t i = 0; i < width; ++i) y(row, i) = T(float(s[i]) * scale * float(weight(i)));
  if (inverse) inverse(row) = scale;
}

template <class T, class G>
__global__ void norm_weight(View<const T, 2> d_y, View<const T, 2> s, View<const float, 1> inverse, View<G, 1> d_weight,
                            bool accumulate) {
  const int64_t i = item_index();
  if (i >= d_y.size(1)) return;
  float sum = accumulate ? float(d_weight(i)) : 0;
  for (int64_t row = 0; row < d_y.size(0); ++row) sum += float(d_y(row, i)) * float(s(row, i)) * inverse(row);
  d_weight(i) = G(sum);
}

// d_x may alias d_y or d_sum: each element is read before it is written.
template <class T>
__global__ void norm_backward_rows(View<const T, 2> d_y, View<const T, 2> d_sum, View<const T, 2> s,
                                   View<const T, 1> weight, View<const float, 1> inverse, View<T, 2> d_x) {
  const int64_t row = item_index(), width = d_y.size(1);
  if (row >= d_y.size(0)) return;
  float product = 0;
  for (int64_t i = 0; i < width; ++i) product += float(d_y(row, i)) * float(weight(i)) * float(s(row, i));
  product *= inverse(row) * inverse(row) / static_cast<float>(width);
  for (int64_t i = 0; i < width; ++i) {
    const float through = (float(d_y(row, i)) * float(weight(i)) - product * float(s(row, i))) * inverse(row);
    d_x(row, i) = T(through + (d_sum ? float(d_sum(row, i)) : 0));
  }
}

template <class T>
__global__ void swiglu_elements(View<const T, 2> gate, View<const T, 2> up, View<T, 2> y) {
  const int64_t row = item_index() / y.size(1), i = item_index() % y.size(1);
  if (row >= y.size(0)) return;
  const float x = gate(row, i);
  y(row, i) = T(x / (1 + expf(-x)) * float(up(row, i)));
}

// d_gate and d_up may alias gate and up.
template <class T>
__global__ void swiglu_backward_elements(View<const T, 2> gate, View<const T, 2> up, View<const T, 2> d_y,
                                         View<T, 2> d_gate, View<T, 2> d_up) {
  const int64_t row = item_index() / d_y.size(1), i = item_index() % d_y.size(1);
  if (row >= d_y.size(0)) return;
  const float x = gate(row, i), u = up(row, i), d = d_y(row, i), sigmoid = 1 / (1 + expf(-x));
  d_gate(row, i) = T(d * u * sigmoid * (1 + x * (1 - sigmoid)));
  d_up(row, i) = T(d * x * sigmoid);
}

// Rows of `width` contiguous elements.
template <class T, class Tensor>
View<T, 2> rows_of(Tensor* tensor, const char* name) {
  View<T, 2> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

class CudaKernels : public Kernels {
 public:
  explicit CudaKernels(const fvlm_instance_config& config) {
    if (Support no = check_device(config.device, 8, 0); no.score == 0) {
      throw Failure(FVLM_ERROR_DEVICE, "%s", no.reason);
    }
  }

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // Checked by supports() and by every call, only for the operations below.
  static Support fits(const Query& query) {
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    if (query.gradient_dtype != float32 && query.gradient_dtype != query.dtype) {
      return refuse("gradients in %s not supported", name_of(query.gradient_dtype));
    }
    const auto unknown = query.options & ~(FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL);
    if (unknown) return refuse("options %#x not supported", unknown);
    return accept(10, "one thread per row"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    const bool backward = (query.options & FVLM_WITH_BACKWARD) != 0;
    if (query.op == FVLM_OP_RMSNORM && backward) requirements.save(float32, {query.rows}); // 1 / rms of each row
  }

  void rmsnorm_forward(const fvlm_call& call, const Query& query, const fvlm_norm_forward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      View<const T, 2> residual;
      View<T, 2> sum;
      View<float, 1> inverse;
      if (arguments.residual) {
        residual = rows_of<const T>(arguments.residual, "residual");
        sum = rows_of<T>(arguments.sum, "sum");
      }
      if (arguments.saved[0]) inverse = View<float, 1>(arguments.saved[0], "saved[0]");
      launch(call, query.rows, norm_rows<T>, rows_of<const T>(arguments.x, "x"), residual,
             View<const T, 1>(arguments.weight, "weight"), rows_of<T>(arguments.y, "y"), sum, inverse, query.epsilon);
    });
  }

  void rmsnorm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto d_y = rows_of<const T>(arguments.d_y, "d_y"), s = rows_of<const T>(arguments.s, "s");
      const View<const float, 1> inverse(arguments.saved[0], "saved[0]");
      View<const T, 2> d_sum;
      if (arguments.d_sum) d_sum = rows_of<const T>(arguments.d_sum, "d_sum");
      // The weight's gradient first: it reads d_y, which d_x may overwrite.
      const bool accumulate = arguments.accumulate != 0;
      if (arguments.d_weight && query.gradient_dtype == float32) {
        launch(call, query.width, norm_weight<T, float>, d_y, s, inverse,
               View<float, 1>(arguments.d_weight, "d_weight"), accumulate);
      } else if (arguments.d_weight) {
        launch(call, query.width, norm_weight<T, T>, d_y, s, inverse, View<T, 1>(arguments.d_weight, "d_weight"),
               accumulate);
      }
      launch(call, query.rows, norm_backward_rows<T>, d_y, d_sum, s, View<const T, 1>(arguments.weight, "weight"),
             inverse, rows_of<T>(arguments.d_x, "d_x"));
    });
  }

  void swiglu_forward(const fvlm_call& call, const Query& query, const fvlm_swiglu_forward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto y = rows_of<T>(arguments.y, "y");
      launch(call, y.count(), swiglu_elements<T>, rows_of<const T>(arguments.gate, "gate"),
             rows_of<const T>(arguments.up, "up"), y);
    });
  }

  void swiglu_backward(const fvlm_call& call, const Query& query, const fvlm_swiglu_backward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto d_y = rows_of<const T>(arguments.d_y, "d_y");
      launch(call, d_y.count(), swiglu_backward_elements<T>, rows_of<const T>(arguments.gate, "gate"),
             rows_of<const T>(arguments.up, "up"), d_y, rows_of<T>(arguments.d_gate, "d_gate"),
             rows_of<T>(arguments.d_up, "d_up"));
    });
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", CudaKernels)
