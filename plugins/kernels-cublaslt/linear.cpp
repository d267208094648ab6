// linear.cpp: the plugin's face: which products a linear is made of, and what is chosen for a shape before it runs.
#include "around.h"
#include "common/cuda_device.h"
#include "few_rows.h"
#include "gelu_product.h"
#include "matmul.h"
#include "timing.h"
#include "weight_product.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int64_t most_library_bytes = 32 << 20, least_library_bytes = 1 << 20;
// For operands to time products on: what one set of them may take, and how much more than an L2 all sets together.
constexpr int64_t most_set_bytes = 64 << 20, most_scratch_bytes = 96 << 20, most_sets = 24;
constexpr int64_t row_unit = 128; // of rows that are cut to fit there
// Of a query; others say what this plugin does not know.
constexpr std::uint32_t known_options =
    FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS | FVLM_WITH_GELU | FVLM_WITH_SUMS | FVLM_WITH_REST;

int64_t bytes(fvlm_dtype dtype) {
  return static_cast<int64_t>(bytes_of(dtype));
}

Matrix matrix_of(const fvlm_tensor* tensor, fvlm_dtype dtype, int64_t rows, int64_t columns, const char* name) {
  if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 2 || tensor->shape[0] != rows || tensor->shape[1] != columns)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s is not %s [%lld, %lld]", name, name_of(dtype), static_cast<long long>(rows),
                  static_cast<long long>(columns));
  if (columns > 1 && tensor->strides[1] != 1)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: its rows must be contiguous", name);
  if (rows <= 1) return {tensor->data, columns};
  if (tensor->strides[0] < columns) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: its rows overlap", name);
  return {tensor->data, tensor->strides[0]};
}

Matrix parameter_of(const fvlm_tensor* tensor, fvlm_dtype dtype, int64_t rows, int64_t columns, const char* name) {
  const Matrix matrix = matrix_of(tensor, dtype, rows, columns, name);
  if (matrix.row != columns) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s is not contiguous", name);
  return matrix;
}

void* vector_of(const fvlm_tensor* tensor, fvlm_dtype dtype, int64_t size, const char* name) {
  if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 1 || tensor->shape[0] != size)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s is not %s [%lld]", name, name_of(dtype), static_cast<long long>(size));
  if (size > 1 && tensor->strides[0] != 1) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s is not contiguous", name);
  return tensor->data;
}

Rows rows_of(const Matrix& matrix) {
  return {matrix.data, matrix.row};
}

// Whether all of them can be read 16 bytes at a time.
Shape shape_of(fvlm_dtype dtype, int64_t rows, int64_t width, std::initializer_list<Matrix> operands) {
  bool wide = width * bytes(dtype) % 16 == 0;
  for (const Matrix& each : operands)
    wide = wide && reinterpret_cast<std::uintptr_t>(each.data) % 16 == 0 && each.row * bytes(dtype) % 16 == 0;
  return {dtype, rows, width, wide};
}

void clear(const fvlm_call& call, void* data, int64_t size) {
  check_cuda(cudaMemsetAsync(data, 0, static_cast<std::size_t>(size), stream_of(call)), "cudaMemsetAsync");
}

class KernelsCublasLt : public Kernels {
 public:
  explicit KernelsCublasLt(const fvlm_instance_config& config)
      : multiprocessors_(multiprocessors_of(config.device)), is_hopper_(has_gelu_products(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // What calls refuse as well.
  static Support fits(const Query& query) {
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    if (has_backward(query) && query.gradient_dtype != query.dtype && query.gradient_dtype != float32)
      return refuse("gradients in %s not supported", name_of(query.gradient_dtype));
    if (query.options & ~known_options) return refuse("options %#x not supported", query.options);
    if ((query.options & FVLM_WITH_GELU) && (query.options & FVLM_WITH_RESIDUAL))
      return refuse("gelu together with a residual not supported");
    if (keeps_rest(query) && (query.dtype == float32 || !has_residual(query)))
      return refuse("a rest is kept of 16 bits and with a residual alone");
    if (query.rows < 0 || query.width < 1 || query.inner < 1 ||
        std::max({query.rows, query.width, query.inner}) > INT32_MAX)
      return refuse("%lld rows of %lld -> %lld not supported", static_cast<long long>(query.rows),
                    static_cast<long long>(query.inner), static_cast<long long>(query.width));
    return accept(200, "cuBLASLt %zu", cublasLtGetVersion());
  }

  void requirements(const Query& query, Requirements& wanted) const {
    require(fits(query));
    Workspace workspace;
    (void)take(workspace, query);
    wanted.forward_workspace = wanted.backward_workspace = workspace.used();
  }

  void prepare(const fvlm_call& call, const Query& query) {
    require(fits(query));
    const bool deterministic = call.flags & FVLM_DETERMINISTIC;
    const Key key = key_of(query, deterministic);
    if (query.rows == 0 || !has_plan(query) || plans_.count(key)) return;
    Workspace workspace(call);
    const Space space = take(workspace, query);
    Plan plan = planned(query, space.library.size());
    // Times differ from run to run, and with them the choice, and with that the bits.
    if (!deterministic && !(call.flags & FVLM_CAPTURING)) measure(call, query, space, plan);
    plans_[key] = std::move(plan);
  }

  void linear_forward(const fvlm_call& call, const Query& query, const fvlm_linear_forward& a) const {
    require(fits(query));
    const Matrix x = matrix_of(a.x, query.dtype, query.rows, query.inner, "x");
    const Matrix weight = parameter_of(a.weight, query.dtype, query.width, query.inner, "weight");
    const Matrix y = matrix_of(a.y, query.dtype, query.rows, query.width, "y");
    const bool gelu = query.options & FVLM_WITH_GELU;
    Matrix sum = y;
    if (gelu && a.pre_activation)
      sum = matrix_of(a.pre_activation, query.dtype, query.rows, query.width, "pre_activation");
    void* bias = has_bias(query) ? vector_of(a.bias, query.dtype, query.width, "bias") : nullptr;
    Matrix residual{};
    if (has_residual(query)) residual = matrix_of(a.residual, query.dtype, query.rows, query.width, "residual");
    if (query.rows == 0) return;
    if (keeps_rest(query)) {
      const auto rows = [&](const fvlm_tensor* tensor, const char* name) {
        return rows_of(matrix_of(tensor, query.dtype, query.rows, query.width, name));
      };
      FewRows product{rows_of(x), rows_of(weight), rows_of(y), bias, rows_of(residual)};
      if (a.rest) product.rest = rows(a.rest, "rest");
      product.y_rest = rows(a.y_rest, "y_rest");
      return few_rows(on(call), few_forward_shape(query), product);
    }
    Workspace workspace(call);
    forward(call, query, plan_of(call, query), {x, weight, sum, y, bias}, residual, gelu, take(workspace, query));
  }

  void linear_input_gradient(const fvlm_call& call, const Query& query, const fvlm_linear_input_gradient& a) const {
    require(fits(query));
    const Matrix d_y = matrix_of(a.d_y, query.dtype, query.rows, query.width, "d_y");
    const Matrix weight = parameter_of(a.weight, query.dtype, query.width, query.inner, "weight");
    const Matrix d_x = matrix_of(a.d_x, query.dtype, query.rows, query.inner, "d_x");
    Matrix before{nullptr, 0};
    if (a.pre_activation) before = matrix_of(a.pre_activation, query.dtype, query.rows, query.inner, "pre_activation");
    void* d_bias = a.d_x_sums ? vector_of(a.d_x_sums, query.gradient_dtype, query.inner, "d_x_sums") : nullptr;
    const bool accumulate = a.accumulate != 0;
    if (query.rows == 0) {
      if (d_bias && !accumulate) clear(call, d_bias, query.inner * bytes(query.gradient_dtype));
      return;
    }
    const Plan& plan = backward_plan_of(call, query);
    Workspace workspace(call);
    const Space space = take(workspace, query);
    input_gradient(call, query, plan, {d_y, weight, before, d_x}, sums_of(query, space, d_bias, accumulate), space);
  }

  void linear_weight_gradient(const fvlm_call& call, const Query& query, const fvlm_linear_weight_gradient& a) const {
    require(fits(query));
    const Matrix d_y = matrix_of(a.d_y, query.dtype, query.rows, query.width, "d_y");
    const Matrix x = matrix_of(a.x, query.dtype, query.rows, query.inner, "x");
    const Matrix d_weight = parameter_of(a.d_weight, query.gradient_dtype, query.width, query.inner, "d_weight");
    void* d_bias = a.d_bias ? vector_of(a.d_bias, query.gradient_dtype, query.width, "d_bias") : nullptr;
    const bool accumulate = a.accumulate != 0;
    if (query.rows == 0) {
      if (accumulate) return;
      clear(call, d_weight.data, query.width * query.inner * bytes(query.gradient_dtype));
      if (d_bias) clear(call, d_bias, query.width * bytes(query.gradient_dtype));
      return;
    }
    const Plan& plan = backward_plan_of(call, query);
    Workspace workspace(call);
    const Space space = take(workspace, query);
    weight_gradient(call, query, plan, {rows_of(d_y), rows_of(x), d_weight.data, d_bias, accumulate}, space);
  }

 private:
  // What a plan depends on.
  using Key = std::tuple<int64_t, int64_t, int64_t, int, int, std::uint32_t, bool>;

  struct Plan {
    Matmul forward, input, weight;
    bool adds_bias = false; // the forward's epilogue does
    // Products of our own: of few rows, and with them whatever else is wanted.
    bool forward_is_few = false, input_is_few = false;
    // Others: without gelu, with it, with its derivative; sums over rows, also those of a bias's gradient.
    bool forward_is_ours = false, input_is_ours = false, gelu_rides = false, slope_rides = false;
    bool weight_is_ours = false, weight_and_bias_are_ours = false;
  };

  struct Space {
    Span<char> library; // or for sums over rows
    Sums sums;
    Span<float> slope_sums; // parts that a product of our own leaves
    Span<char> scratch;
  };

  // The operands to time on: sets of the same sizes, one behind the other, with as many rows as there is room for.
  struct Sets {
    int64_t rows = 0;                                      // 0: too few to tell anything
    int64_t x = 0, y = 0, weight = 0, bias = 0, count = 0; // bytes of each, and how many sets

    int64_t bytes() const { return x + y + weight + bias; }
  };
  struct Set {
    Matrix x, y, weight;
    void* bias;
  };

  static bool has_backward(const Query& query) { return query.options & FVLM_WITH_BACKWARD; }
  static bool has_bias(const Query& query) { return query.options & FVLM_WITH_BIAS; }
  static bool has_residual(const Query& query) { return query.options & FVLM_WITH_RESIDUAL; }
  static bool keeps_rest(const Query& query) { return query.options & FVLM_WITH_REST; }
  // Where it keeps the rest, the forward is a product of our own.
  static bool has_plan(const Query& query) { return !keeps_rest(query) || has_backward(query); }

  static Key key_of(const Query& q, bool deterministic) {
    return {q.rows,
            q.width,
            q.inner,
            q.dtype.code * 256 + q.dtype.bits,
            has_backward(q) ? q.gradient_dtype.bits : 0,
            q.options & (FVLM_WITH_BACKWARD | FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL),
            deterministic};
  }

  const Plan& plan_of(const fvlm_call& call, const Query& query) const {
    const bool deterministic = call.flags & FVLM_DETERMINISTIC;
    for (const bool asked : {deterministic, !deterministic})
      if (const auto found = plans_.find(key_of(query, asked)); found != plans_.end()) return found->second;
    throw Failure(FVLM_ERROR_ARGUMENT, "prepare() has not seen %lld rows of %lld -> %lld",
                  static_cast<long long>(query.rows), static_cast<long long>(query.inner),
                  static_cast<long long>(query.width));
  }
  const Plan& backward_plan_of(const fvlm_call& call, const Query& query) const {
    if (!has_backward(query)) throw Failure(FVLM_ERROR_ARGUMENT, "the query said that no backward follows");
    return plan_of(call, query);
  }

  static MatmulShape forward_shape(const Query& q, int64_t rows, bool bias) {
    return {{q.dtype, q.dtype, rows, q.width, q.inner, false, true}, bias};
  }
  static MatmulShape input_shape(const Query& q, int64_t rows) { return {{q.dtype, q.dtype, rows, q.inner, q.width}}; }
  static MatmulShape weight_shape(const Query& q, int64_t rows) {
    return {{q.dtype, q.gradient_dtype, q.width, q.inner, rows, true}};
  }

  static FewRowsShape few_forward_shape(const Query& q) { return {q.dtype, q.rows, q.inner, q.width}; }
  static FewRowsShape few_input_shape(const Query& q) { return {q.dtype, q.rows, q.width, q.inner, true}; }
  static GeluProductShape gelu_shape(const Query& q) { return {q.dtype, q.rows, q.inner, q.width}; }
  static GeluProductShape slope_shape(const Query& q) { return {q.dtype, q.rows, q.width, q.inner}; }
  static WeightProductShape sum_shape(const Query& q) { return {q.dtype, q.gradient_dtype, q.rows, q.inner, q.width}; }
  bool may_sum(const Query& query) const {
    return is_hopper_ && has_backward(query) && fits_weight_product(multiprocessors_, sum_shape(query));
  }
  bool may_be_few(const FewRowsShape& shape) const { return fits_few_rows(device_of(nullptr), shape); }
  bool may_ride(const GeluProductShape& shape) const { return is_hopper_ && fits_gelu_product(shape); }

  // Products of our own give the same bits in every run: where there are any, they are taken until something is
  // measured.
  Plan planned(const Query& query, std::size_t library_bytes) const {
    const auto needed = [](Matmul product) {
      if (!product.exists()) throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm");
      return product;
    };
    Plan plan;
    if (has_bias(query)) plan.forward = Matmul(library_, forward_shape(query, query.rows, true), library_bytes);
    plan.adds_bias = plan.forward.exists();
    if (!plan.adds_bias)
      plan.forward = needed(Matmul(library_, forward_shape(query, query.rows, false), library_bytes));
    plan.forward_is_few = may_be_few(few_forward_shape(query));
    plan.forward_is_ours = plan.gelu_rides = may_ride(gelu_shape(query));
    if (!has_backward(query)) return plan;
    plan.input_is_few = may_be_few(few_input_shape(query));
    plan.input_is_ours = plan.slope_rides = may_ride(slope_shape(query));
    plan.input = needed(Matmul(library_, input_shape(query, query.rows), library_bytes));
    plan.weight = needed(Matmul(library_, weight_shape(query, query.rows), library_bytes));
    plan.weight_is_ours = plan.weight_and_bias_are_ours = may_sum(query);
    return plan;
  }

  void forward(const fvlm_call& call, const Query& query, const Plan& plan, const GeluForward& o,
               const Matrix& residual, bool gelu, const Space& space) const {
    FewRows few{rows_of(o.x), rows_of(o.weight), rows_of(o.y), o.bias, rows_of(residual)};
    few.gelu = gelu;
    if (o.sum.data != o.y.data) few.sum = rows_of(o.sum);
    if (plan.forward_is_few && takes_few_rows(on(call), few_forward_shape(query), few))
      return few_rows(on(call), few_forward_shape(query), few);
    if (gelu && plan.gelu_rides && copy_engine_takes(query.dtype, {o.x, o.weight, o.sum, o.y}))
      return gelu_forward(on(call), gelu_shape(query), o);
    if (!gelu && plan.forward_is_ours && copy_engine_takes(query.dtype, {o.x, o.weight, o.y}) &&
        (!residual.data || copy_engine_takes(query.dtype, {residual})))
      return plain_product(on(call), gelu_shape(query), {o.x, o.weight, o.y, o.bias, residual});
    Matrix bias{o.bias, 0};
    plan.forward.run(library_, call, {o.x, o.weight, o.sum, plan.adds_bias ? o.bias : nullptr, false, residual},
                     space.library);
    if (plan.adds_bias) bias.data = nullptr;
    if (gelu || bias.data)
      finish(on(call), shape_of(query.dtype, query.rows, query.width, {o.sum, o.y, bias}),
             {rows_of(o.sum), rows_of(o.y), bias.data, gelu, o.sum.data != o.y.data});
  }

  void input_gradient(const fvlm_call& call, const Query& query, const Plan& plan, GeluBackward o, const Sums& sums,
                      const Space& space) const {
    const bool gelu = o.x.data != nullptr;
    FewRows few{rows_of(o.d_y), rows_of(o.weight), rows_of(o.d_x)};
    few.slope = rows_of(o.x), few.sums = sums;
    if (plan.input_is_few && takes_few_rows(on(call), few_input_shape(query), few))
      return few_rows(on(call), few_input_shape(query), few);
    if (gelu && plan.slope_rides && copy_engine_takes(query.dtype, {o.d_y, o.weight, o.x, o.d_x})) {
      if (sums.wanted()) o.sums = space.slope_sums.data();
      gelu_backward(on(call), slope_shape(query), o);
      const Matrix parts{o.sums, query.inner};
      if (o.sums)
        column_sums(on(call),
                    shape_of(float32, parts_of_sums(multiprocessors_, slope_shape(query)), query.inner, {parts}),
                    rows_of(parts), sums);
      return;
    }
    if (!gelu && plan.input_is_ours && copy_engine_takes(query.dtype, {o.d_y, o.weight, o.d_x}))
      plain_product(on(call), slope_shape(query), {o.d_y, o.weight, o.d_x, nullptr, {}, true});
    else
      plan.input.run(library_, call, {o.d_y, o.weight, o.d_x}, space.library);
    const Shape shape = shape_of(query.dtype, query.rows, query.inner, {o.x, o.d_x});
    if (gelu && sums.wanted())
      gelu_gradient(on(call), shape, {rows_of(o.x), rows_of(o.d_x)}, sums);
    else if (gelu)
      gelu_gradient(on(call), shape, {rows_of(o.x), rows_of(o.d_x)});
    else if (sums.wanted())
      column_sums(on(call), shape, rows_of(o.d_x), sums);
  }

  void weight_gradient(const fvlm_call& call, const Query& query, const Plan& plan, const WeightProduct& o,
                       const Space& space) const {
    const Matrix d_y{o.d_y.data, o.d_y.stride}, x{o.x.data, o.x.stride};
    if ((o.d_bias ? plan.weight_and_bias_are_ours : plan.weight_is_ours) && copy_engine_takes(query.dtype, {d_y, x}))
      return weight_product(on(call), sum_shape(query), o, space.library.data());
    plan.weight.run(library_, call, {d_y, x, {o.d_weight, query.inner}, nullptr, o.accumulate}, space.library);
    // cuBLASLt's epilogue for these sums takes twice a product's time on an H100 (bench/LOG.md).
    if (o.d_bias)
      column_sums(on(call), shape_of(query.dtype, query.rows, query.width, {d_y}), o.d_y,
                  sums_of(query, space, o.d_bias, o.accumulate));
  }

  // Replaces the heuristics' first choices by the fastest of their candidates.
  void measure(const fvlm_call& call, const Query& query, const Space& space, Plan& plan) const {
    const Sets sets = sets_of(query);
    if (sets.rows == 0) return;
    fill(stream_of(call), query.dtype, space.scratch.data(), sets.count * sets.bytes() / bytes(query.dtype));
    const auto set = [&](int turn) { return set_of(query, sets, space, turn); };
    const auto timed = [&](Matmul& product, const MatmulShape& shape,
                           const std::function<MatmulOperands(int)>& operands, const char* what) {
      product.measure(library_, call, shape, operands, space.library);
      log(call.host, FVLM_LOG_DEBUG, "linear %lld x %lld -> %lld, %s, timed on %lld rows: %s",
          static_cast<long long>(query.rows), static_cast<long long>(query.inner), static_cast<long long>(query.width),
          what, static_cast<long long>(sets.rows), product.report());
    };
    timed(
        plan.forward, forward_shape(query, sets.rows, plan.adds_bias),
        [&](int turn) {
          const Set s = set(turn);
          return MatmulOperands{
              s.x, s.weight, s.y, plan.adds_bias ? s.bias : nullptr, false, has_residual(query) ? s.y : Matrix{}};
        },
        "forward");
    if (has_backward(query))
      timed(
          plan.input, input_shape(query, sets.rows),
          [&](int turn) {
            const Set s = set(turn);
            return MatmulOperands{s.y, s.weight, s.x};
          },
          "input gradient");
    measure_plain(call, query, space, sets, plan);
    measure_riders(call, query, space, sets, plan);
    // Its rows are what it sums over: fewer of them ask for other ways to cut the sums.
    if (!has_backward(query) || sets.rows < query.rows) return;
    timed(
        plan.weight, weight_shape(query, sets.rows),
        [&](int turn) {
          const Set s = set(turn);
          return MatmulOperands{s.y, s.x, s.weight};
        },
        "weight gradient");
    measure_sums(call, query, space, sets, plan);
  }

  // Whether products by themselves are to be our own.
  void measure_plain(const fvlm_call& call, const Query& query, const Space& space, const Sets& sets,
                     Plan& plan) const {
    Query timed = query;
    timed.rows = sets.rows;
    const auto choose = [&](bool Plan::*ours, const std::function<void(const Plan&, const Set&)>& run,
                            const char* what) {
      Plan ways;
      ways.forward = plan.forward.with_rows(timed.rows);
      ways.input = plan.input.with_rows(timed.rows);
      ways.adds_bias = plan.adds_bias;
      ways.*ours = plan.*ours;
      plan.*ours = is_faster(call, query, timed.rows, ways, ours, what,
                             [&](const Plan& way, int turn) { run(way, set_of(query, sets, space, turn)); });
    };
    const auto run_forward = [&](const Plan& way, const Set& s) {
      forward(call, timed, way, {s.x, s.weight, s.y, s.y, s.bias}, has_residual(query) ? s.y : Matrix{}, false, space);
    };
    const auto run_input = [&](const Plan& way, const Set& s) {
      input_gradient(call, timed, way, {s.y, s.weight, {}, s.x}, {}, space);
    };
    choose(&Plan::forward_is_few, run_forward, "forward of few rows");
    if (!plan.forward_is_few) choose(&Plan::forward_is_ours, run_forward, "forward");
    if (!has_backward(query)) return;
    choose(&Plan::input_is_few, run_input, "input gradient of few rows");
    if (!plan.input_is_few) choose(&Plan::input_is_ours, run_input, "input gradient");
  }

  // Whether gelu and its derivative are to ride where a product of few rows does not take them. With half the rows:
  // where the results of the others lie there is room for what they are computed of.
  void measure_riders(const fvlm_call& call, const Query& query, const Space& space, const Sets& sets,
                      Plan& plan) const {
    Query half = query;
    half.rows = sets.rows / 2;
    if (half.rows == 0) return;
    Plan rides = plan;
    rides.forward_is_few = rides.input_is_few = false;
    rides.forward = plan.forward.with_rows(half.rows);
    rides.input = plan.input.with_rows(half.rows);
    const auto rest_of = [&](const Matrix& whole) {
      return Matrix{static_cast<char*>(whole.data) + half.rows * whole.row * bytes(query.dtype), whole.row};
    };
    const auto choose = [&](bool Plan::*rider, const std::function<void(const Plan&, const Set&)>& run,
                            const char* what) {
      plan.*rider = is_faster(call, query, half.rows, rides, rider, what,
                              [&](const Plan& way, int turn) { run(way, set_of(query, sets, space, turn)); });
    };
    choose(
        &Plan::gelu_rides,
        [&](const Plan& way, const Set& s) {
          forward(call, half, way, {s.x, s.weight, s.y, rest_of(s.y), s.bias}, {}, true, space);
        },
        "gelu");
    choose(
        &Plan::slope_rides,
        [&](const Plan& way, const Set& s) {
          input_gradient(call, half, way, {s.y, s.weight, s.x, rest_of(s.x)}, {}, space);
        },
        "gelu's derivative");
  }

  void measure_sums(const fvlm_call& call, const Query& query, const Space& space, const Sets& sets, Plan& plan) const {
    const auto choose = [&](bool Plan::*ours, bool bias, const char* what) {
      plan.*ours = is_faster(call, query, query.rows, plan, ours, what, [&](const Plan& way, int turn) {
        const Set s = set_of(query, sets, space, turn);
        weight_gradient(call, query, way, {rows_of(s.y), rows_of(s.x), s.weight.data, bias ? s.bias : nullptr, false},
                        space);
      });
    };
    choose(&Plan::weight_is_ours, false, "weight gradient");
    if (has_bias(query)) choose(&Plan::weight_and_bias_are_ours, true, "weight and bias gradient");
  }

  // Whether what the plan does on a product of our own takes longer otherwise.
  bool is_faster(const fvlm_call& call, const Query& query, int64_t rows, const Plan& plan, bool Plan::*ours,
                 const char* what, const std::function<void(const Plan&, int turn)>& run) const {
    if (!(plan.*ours)) return false;
    Plan otherwise = plan;
    otherwise.*ours = false;
    const auto way = [&](const Plan& of) {
      return [&](int turn) {
        run(of, turn);
        return true;
      };
    };
    const std::vector<double> seconds = time_in_turn(stream_of(call), {way(plan), way(otherwise)});
    log(call.host, FVLM_LOG_DEBUG,
        "linear %lld x %lld -> %lld, %s, timed on %lld rows: a product of our own %.1f us, cuBLASLt %.1f us",
        static_cast<long long>(query.rows), static_cast<long long>(query.inner), static_cast<long long>(query.width),
        what, static_cast<long long>(rows), seconds[0] * 1e6, seconds[1] * 1e6);
    return fastest_of(seconds) == 0;
  }

  static Sums sums_of(const Query& query, const Space& space, void* d_bias, bool accumulate) {
    Sums sums = space.sums;
    sums.out[0] = d_bias;
    sums.type = query.gradient_dtype;
    sums.accumulate = accumulate;
    return sums;
  }

  Device device_of(cudaStream_t stream) const { return {stream, multiprocessors_, is_hopper_}; }
  Device on(const fvlm_call& call) const { return device_of(stream_of(call)); }

  // Room for 16 parts of the largest sum that cuBLASLt may want to split.
  static int64_t library_bytes(const Query& query) {
    int64_t largest = query.rows * query.width;
    if (has_backward(query)) largest = std::max({largest, query.rows * query.inner, query.width * query.inner});
    return std::clamp(largest * 4 * 16, least_library_bytes, most_library_bytes);
  }

  static Sets sets_of(const Query& query) {
    const auto padded = [](int64_t size) { return (size + 255) / 256 * 256; };
    const int64_t element = bytes(query.dtype);
    Sets sets;
    sets.weight = padded(query.width * query.inner * (has_backward(query) ? 4 : element));
    sets.bias = padded(query.width * (has_backward(query) ? 4 : element));
    const int64_t room = (most_set_bytes - sets.weight - sets.bias) / ((query.inner + query.width) * element);
    sets.rows = room >= query.rows ? query.rows : room < row_unit ? 0 : room / row_unit * row_unit;
    sets.x = padded(sets.rows * query.inner * element);
    sets.y = padded(sets.rows * query.width * element);
    sets.count = sets.rows == 0 ? 0 : std::clamp<int64_t>(most_scratch_bytes / sets.bytes(), 1, most_sets);
    return sets;
  }

  static Set set_of(const Query& query, const Sets& sets, const Space& space, int turn) {
    char* x = space.scratch.data() + turn % sets.count * sets.bytes();
    char *y = x + sets.x, *weight = y + sets.y;
    return {{x, query.inner}, {y, query.width}, {weight, query.inner}, weight + sets.weight};
  }

  Space take(Workspace& workspace, const Query& query) const {
    Space space;
    if (!has_plan(query)) return space;
    const int64_t sum_bytes = may_sum(query) ? weight_product_bytes(multiprocessors_) : 0;
    space.library = workspace.take<char>(query.rows > 0 ? std::max(library_bytes(query), sum_bytes) : 0);
    int64_t summed = has_bias(query) ? query.width : 0; // columns of one call
    if (query.options & FVLM_WITH_SUMS) summed = std::max(summed, query.inner);
    if (has_backward(query) && summed > 0 && query.rows > 0) space.sums.take(workspace, summed, 1, multiprocessors_);
    if (query.options & FVLM_WITH_SUMS && query.rows > 0 && may_ride(slope_shape(query)))
      space.slope_sums = workspace.take<float>(parts_of_sums(multiprocessors_, slope_shape(query)) * query.inner);
    const Sets sets = sets_of(query);
    space.scratch = workspace.take<char>(sets.count * sets.bytes());
    return space;
  }

  CublasLt library_;
  int multiprocessors_;
  bool is_hopper_; // there are clusters, and products by the copy engine
  std::map<Key, Plan> plans_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("kernels-cublaslt", "0.1.0", fvlm::plugins::KernelsCublasLt)
