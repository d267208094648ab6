// @NAME@: int8 with one scale per row, in plain CUDA. fvlm/quantizer.h specifies each function and the int8
// scheme. For a scheme of your own, change `scheme` here and the kind in plugin.toml, then the packed form.
#include <fvlm/cuda.hpp>

#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;
using std::int8_t;

template <class T>
__device__ float scale_of(const T* weight, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(float(weight[i])));
  return largest / 127;
}

__device__ float code_of(float weight, float scale) {
  return scale > 0 ? fmaxf(-127, fminf(127, rintf(weight / scale))) : 0; // rintf rounds half to even
}

// The packed form, as requirements() declares it.
struct Packed {
  View<const int8_t, 2> codes;
  View<const float, 1> scales;

  template <class Arguments>
  explicit Packed(const Arguments& arguments)
      : codes(arguments.packed[0], "codes"), scales(arguments.packed[1], "scales") {}
  __device__ float operator()(int64_t row, int64_t col) const { return float(codes(row, col)) * scales(row); }
};

template <class T>
__global__ void pack_rows(View<const T, 2> weight, View<int8_t, 2> codes, View<float, 1> scales) {
  const int64_t row = item_index();
  if (row >= weight.size(0)) return;
  const float scale = scale_of(weight.row(row), weight.size(1));
  for (int64_t i = 0; i < weight.size(1); ++i)
    codes(row, i) = static_cast<int8_t>(code_of(float(weight(row, i)), scale));
  scales(row) = scale;
}

template <class T>
__global__ void unpack_elements(Packed packed, View<T, 2> weight) {
  const int64_t row = item_index() / weight.size(1), i = item_index() % weight.size(1);
  if (row < weight.size(0)) weight(row, i) = T(packed(row, i));
}

template <class T>
__global__ void linear_elements(Packed packed, View<const T, 2> x, View<const T, 1> bias, View<T, 2> y) {
  const int64_t token = item_index() / y.size(1), row = item_index() % y.size(1);
  if (token >= y.size(0)) return;
  float sum = bias ? float(bias(row)) : 0;
  for (int64_t i = 0; i < x.size(1); ++i) sum += float(x(token, i)) * packed(row, i);
  y(token, row) = T(sum);
}

template <class T>
__global__ void gradient_elements(Packed packed, View<const T, 2> d_y, View<T, 2> d_x) {
  const int64_t token = item_index() / d_x.size(1), i = item_index() % d_x.size(1);
  if (token >= d_x.size(0)) return;
  float sum = 0;
  for (int64_t row = 0; row < d_y.size(1); ++row) sum += float(d_y(token, row)) * packed(row, i);
  d_x(token, i) = T(sum);
}

template <class T>
__global__ void fake_rows(View<const T, 2> weight, View<T, 2> out) {
  const int64_t row = item_index();
  if (row >= weight.size(0)) return;
  const float scale = scale_of(weight.row(row), weight.size(1));
  for (int64_t i = 0; i < weight.size(1); ++i) out(row, i) = T(code_of(float(weight(row, i)), scale) * scale);
}

template <class T>
__global__ void copy_elements(View<const T, 2> from, View<T, 2> to) {
  const int64_t row = item_index() / to.size(1), i = item_index() % to.size(1);
  if (row < to.size(0)) to(row, i) = from(row, i);
}

// Rows of contiguous elements.
template <class T, class Tensor>
View<T, 2> rows_of(Tensor* tensor, const char* name) {
  View<T, 2> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

class CudaInt8 : public Quantizer {
 public:
  static constexpr const char* scheme = "int8";
  static constexpr int bits = 8;

  explicit CudaInt8(const fvlm_instance_config& config) {
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
    return accept(10, "one thread per element"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    requirements.save(int8, {query.rows, query.cols});
    requirements.save(float32, {query.rows});
  }

  void pack(const fvlm_call& call, const Query& query, const Pack& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      launch(call, query.rows, pack_rows<T>, rows_of<const T>(arguments.weight, "weight"),
             View<int8_t, 2>(arguments.packed[0], "codes"), View<float, 1>(arguments.packed[1], "scales"));
    });
  }

  void unpack(const fvlm_call& call, const Query& query, const Unpack& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto weight = rows_of<T>(arguments.weight, "weight");
      launch(call, weight.count(), unpack_elements<T>, Packed(arguments), weight);
    });
  }

  void linear(const fvlm_call& call, const Query& query, const Linear& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      View<const T, 1> bias;
      if (arguments.bias) bias = View<const T, 1>(arguments.bias, "bias");
      const auto y = rows_of<T>(arguments.y, "y");
      launch(call, y.count(), linear_elements<T>, Packed(arguments), rows_of<const T>(arguments.x, "x"), bias, y);
    });
  }

  void linear_gradient(const fvlm_call& call, const Query& query, const LinearGradient& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto d_x = rows_of<T>(arguments.d_x, "d_x");
      launch(call, d_x.count(), gradient_elements<T>, Packed(arguments), rows_of<const T>(arguments.d_y, "d_y"), d_x);
    });
  }

  void fake_quantize_forward(const fvlm_call& call, const Query& query, const FakeForward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      launch(call, query.rows, fake_rows<T>, rows_of<const T>(arguments.weight, "weight"),
             rows_of<T>(arguments.out, "out"));
    });
  }

  // The largest weight sets the scale, so nothing is clipped and every gradient passes.
  void fake_quantize_backward(const fvlm_call& call, const Query& query, const FakeBackward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto d_weight = rows_of<T>(arguments.d_weight, "d_weight");
      launch(call, d_weight.count(), copy_elements<T>, rows_of<const T>(arguments.d_out, "d_out"), d_weight);
    });
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", CudaInt8)
