// linear.cpp: the plugin's entry points: a linear layer's forward, input gradient and weight gradient, and the
// selection of a kernel for each shape before it runs: cuBLASLt's algorithms, or fused products of this plugin.
#include "common/cuda_device.h"
#include "common/gelu_form.h"
#include "elementwise.h"
#include "gemm_gelu.h"
#include "gemm_skinny.h"
#include "gemm_weight_gradient.h"
#include "linear_choices.h"
#include "linear_extended.h"
#include "linear_fp8.h"
#include "linear_operands.h"
#include "linear_support.h"
#include "timing.h"
#include "timing_operands.h"

#include <algorithm>
#include <cstdio>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;
using Plan = LinearPlan;

class KernelsCublasLt : public Kernels {
 public:
  explicit KernelsCublasLt(const fvlm_instance_config& config)
      : multiprocessors_(multiprocessor_count(config.device)), is_hopper_(has_fused_gemms(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  void requirements(const Query& query, Requirements& requirements) const {
    require(fits(query));
    Workspace workspace;
    (void)allocate(workspace, query);
    requirements.forward_workspace = requirements.backward_workspace = workspace.used();
    if (has_plan(query) && !is_fp8(query) && query.rows > 0)
      requirements.prepare_workspace = workspace.used() + static_cast<std::size_t>(TimingOperands(query).bytes());
  }

  void prepare(const fvlm_call& call, const Query& query) {
    require(fits(query));
    const bool deterministic = call.flags & FVLM_DETERMINISTIC;
    const PlanKey key = plan_key_of(query, deterministic);
    if (query.rows == 0 || !has_plan(query) || plans_.count(key)) return;
    Workspace workspace(call);
    const Scratch scratch = allocate(workspace, query);
    Plan plan = heuristic_plan(query, scratch.products.size());
    // Timings vary from run to run, and with them the selected algorithm and the bits of the result.
    if (TimingOperands operands(query);
        !deterministic && !is_fp8(query) && !streams_weight(query) &&
        !choices_.apply(library_, call, query, scratch.products.size(), plan) && !(call.flags & FVLM_CAPTURING) &&
        operands.rows > 0 && call.workspace_size >= workspace.used() + static_cast<std::size_t>(operands.bytes())) {
      operands.memory = workspace.take<char>(operands.bytes()).data();
      measure(call, query, scratch, operands, plan);
      choices_.keep(call, query, plan);
    }
    plans_[key] = std::move(plan);
  }

  void linear_forward(const fvlm_call& call, const Query& query, const fvlm_linear_forward& a) const {
    require(fits(query));
    Workspace workspace(call);
    if (is_extended(query)) return extended_forward(on(call), query, a, allocate(workspace, query).fp8);
    const Matrix x = matrix_of(a.x, query.dtype, query.rows, query.inner, "x"), weight = weight_of(query, a.weight),
                 y = matrix_of(a.y, query.dtype, query.rows, query.width, "y");
    const bool gelu = query.options & FVLM_WITH_GELU;
    Matrix sum = y;
    if (gelu && a.pre_activation)
      sum = matrix_of(a.pre_activation, query.dtype, query.rows, query.width, "pre_activation");
    void* bias = has_bias(query) ? vector_of(a.bias, query.dtype, query.width, "bias") : nullptr;
    Matrix residual{};
    if (has_residual(query)) residual = matrix_of(a.residual, query.dtype, query.rows, query.width, "residual");
    if (query.rows == 0) return;
    if (is_fp8(query)) return fp8_forward(fp8_call(call, query), x, weight, y, bias, residual);
    if (keeps_compensation(query)) {
      const auto rows = [&](const fvlm_tensor* tensor, const char* name) {
        return rows_of(matrix_of(tensor, query.dtype, query.rows, query.width, name));
      };
      SkinnyGemm product{rows_of(x), rows_of(weight), rows_of(y), bias, rows_of(residual)};
      if (a.rest) product.compensation = rows(a.rest, "rest");
      product.y_compensation = rows(a.y_rest, "y_rest");
      return skinny_gemm(on(call), skinny_forward_shape(query), product);
    }
    FewRowsGemm few{rows_of(x), rows_of(weight), rows_of(y), bias, rows_of(residual)};
    few.starts_early = true;
    if (streams_weight(query) && few_rows_aligned(few))
      return few_rows_gemm(on(call), skinny_forward_shape(query), few);
    forward(call, query, plan_of(call, query), {x, weight, sum, y, bias}, residual, gelu, allocate(workspace, query));
  }

  void linear_input_gradient(const fvlm_call& call, const Query& query, const fvlm_linear_input_gradient& a) const {
    require(fits(query));
    Workspace workspace(call);
    if (is_extended(query)) return extended_input_gradient(on(call), query, a, allocate(workspace, query).fp8);
    const Matrix d_y = matrix_of(a.d_y, query.dtype, query.rows, query.width, "d_y"),
                 weight = weight_of(query, a.weight),
                 d_x = matrix_of(a.d_x, query.dtype, query.rows, query.inner, "d_x");
    Matrix pre_activation{};
    if (a.pre_activation)
      pre_activation = matrix_of(a.pre_activation, query.dtype, query.rows, query.inner, "pre_activation");
    void* d_bias = a.d_x_sums ? vector_of(a.d_x_sums, query.gradient_dtype, query.inner, "d_x_sums") : nullptr;
    const bool accumulate = a.accumulate != 0;
    if (query.rows == 0) {
      if (d_bias && !accumulate) clear(call, d_bias, query.inner * bytes(query.gradient_dtype));
      return;
    }
    const Plan& plan = backward_plan_of(call, query);
    if (is_fp8(query)) {
      if (a.pre_activation) throw Failure(FVLM_ERROR_UNSUPPORTED, "fp8 together with a gelu is not supported");
      return fp8_input_gradient(fp8_call(call, query), d_y, weight, d_x);
    }
    const Scratch scratch = allocate(workspace, query);
    input_gradient(call, query, plan, {d_y, weight, pre_activation, d_x}, sums_of(query, scratch, d_bias, accumulate),
                   scratch);
  }

  void linear_weight_gradient(const fvlm_call& call, const Query& query, const fvlm_linear_weight_gradient& a) const {
    require(fits(query));
    const Matrix d_y = matrix_of(a.d_y, query.dtype, query.rows, query.width, "d_y");
    const Matrix x = matrix_of(a.x, query.dtype, query.rows, query.inner, "x");
    const Matrix d_weight = parameter_of(a.d_weight, query.gradient_dtype, query.width, query.inner, "d_weight");
    void* d_bias = a.d_bias ? vector_of(a.d_bias, query.gradient_dtype, query.width, "d_bias") : nullptr;
    if (query.rows == 0) {
      const int64_t column = a.accumulate ? 0 : query.width * bytes(query.gradient_dtype);
      clear(call, d_weight.data, query.inner * column);
      if (d_bias) clear(call, d_bias, column);
      return;
    }
    const Plan& plan = backward_plan_of(call, query);
    Workspace workspace(call);
    const Scratch scratch = allocate(workspace, query);
    if (gives_both_gradients(query)) {
      const NarrowGradients both = both_gradients_of(query, a);
      if (is_fp8(query)) return fp8_both_gradients(fp8_call(call, query), both);
      if (narrow_gradients_take(both))
        return narrow_gradients(on(call), narrow_gradients_shape(query), both, scratch.products.data());
      input_gradient(call, query, plan, {d_y, matrix_of(both.weight), {}, matrix_of(both.d_x)}, {}, scratch);
    }
    weight_gradient(call, query, plan, {rows_of(d_y), rows_of(x), d_weight.data, d_bias, a.accumulate != 0}, scratch);
  }

 private:
  struct Scratch {
    Span<char> products; // workspace of cuBLASLt or of a custom weight gradient, or partial sums of a fused product
    GradientSums sums;
    Fp8Scratch fp8;
  };

  Fp8Call fp8_call(const fvlm_call& call, const Query& query) const {
    Workspace workspace(call);
    const Scratch scratch = allocate(workspace, query);
    return {library_,
            call,
            on(call),
            query,
            plan_of(call, query),
            scratch.fp8,
            scratch.products.data(),
            scratch.products.size()};
  }

  const Plan& plan_of(const fvlm_call& call, const Query& query) const {
    const bool deterministic = call.flags & FVLM_DETERMINISTIC;
    for (const bool wanted_key : {deterministic, !deterministic})
      if (const auto found = plans_.find(plan_key_of(query, wanted_key)); found != plans_.end()) return found->second;
    throw not_prepared(query);
  }
  const Plan& backward_plan_of(const fvlm_call& call, const Query& query) const {
    require_backward(query);
    return plan_of(call, query);
  }
  bool streams_weight(const Query& query) const { return is_hopper_ && is_decoding_product(query, true); }

  bool may_be_custom(const Query& query) const {
    return is_hopper_ && has_backward(query) &&
           weight_gradient_supports(multiprocessors_, weight_gradient_shape(query));
  }
  bool may_be_skinny(const SkinnyGemmShape& shape) const { return skinny_gemm_supports(device_of(nullptr), shape); }
  bool may_fuse(const FusedGemmShape& shape) const { return is_hopper_ && fused_gemm_supports(shape); }

  // Custom kernels give the same bits in every run, so they are preferred wherever they apply until something is
  // measured.
  Plan heuristic_plan(const Query& query, std::size_t cublas_bytes) const {
    const auto require_algorithm = [](Matmul product) {
      if (!product.exists()) throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm");
      return product;
    };
    Plan plan;
    if (has_bias(query)) plan.forward = Matmul(library_, forward_shape(query, query.rows, true), cublas_bytes);
    plan.adds_bias = plan.forward.exists();
    if (is_fp8(query)) plan_fp8(library_, query, cublas_bytes, plan);
    if (!plan.adds_bias)
      plan.forward = require_algorithm(Matmul(library_, forward_shape(query, query.rows, false), cublas_bytes));
    plan.forward_is_skinny = may_be_skinny(skinny_forward_shape(query));
    plan.gelu_is_fused = may_fuse(fused_forward_shape(query));
    plan.forward_is_fused = plan.gelu_is_fused && fused_gemm_is_resident(fused_forward_shape(query));
    using enum MatmulShape::Gelu;
    const bool tanh = query.options & FVLM_GELU_TANH, gelu = query.options & FVLM_WITH_GELU;
    if (tanh && gelu) plan.gelu_forward = Matmul(library_, gelu_shape(query, value, query.rows), cublas_bytes);
    if (!has_backward(query)) return plan;
    if (tanh && !gelu) plan.gelu_input = Matmul(library_, gelu_shape(query, derivative, query.rows), cublas_bytes);
    plan.input_is_skinny = may_be_skinny(skinny_input_shape(query));
    plan.gelu_derivative_is_fused = may_fuse(fused_input_shape(query));
    plan.input_is_fused = plan.gelu_derivative_is_fused && fused_gemm_is_resident(fused_input_shape(query));
    plan.input = require_algorithm(Matmul(library_, input_shape(query, query.rows), cublas_bytes));
    plan.weight = require_algorithm(Matmul(library_, weight_shape(query, query.rows), cublas_bytes));
    plan.weight_is_custom = plan.weight_and_bias_are_custom = may_be_custom(query);
    return plan;
  }

  void forward(const fvlm_call& call, const Query& query, const Plan& plan, const FusedGeluForward& o,
               const Matrix& residual, bool gelu, const Scratch& scratch) const {
    SkinnyGemm skinny{rows_of(o.x), rows_of(o.weight), rows_of(o.y), o.bias, rows_of(residual)};
    skinny.gelu = gelu;
    if (o.sum.data != o.y.data) skinny.sum = rows_of(o.sum);
    const bool exact = is_exact(query), keeps_sum = o.sum.data != o.y.data;
    const MatmulOperands with_gelu{o.x, o.weight, o.y, o.bias, false, {}, keeps_sum ? o.sum : Matrix{}};
    if (plan.forward_is_skinny && (!gelu || exact) && skinny_gemm_takes(on(call), skinny_forward_shape(query), skinny))
      return skinny_gemm(on(call), skinny_forward_shape(query), skinny);
    if (gelu && plan.gelu_is_fused && tma_compatible(query.dtype, {o.x, o.weight, o.sum, o.y}))
      return fused_gelu_forward(on(call), fused_forward_shape(query), o);
    if (gelu && plan.gelu_is_epilogue && keeps_sum == has_backward(query) && plan.gelu_forward.takes(with_gelu))
      return plan.gelu_forward.run(library_, call, with_gelu, scratch.products);
    if (!gelu && plan.forward_is_fused && tma_compatible(query.dtype, {o.x, o.weight, o.y}) &&
        (!residual.data || tma_compatible(query.dtype, {residual})))
      return fused_linear(on(call), fused_forward_shape(query), {o.x, o.weight, o.y, o.bias, residual});
    Matrix bias{o.bias, 0};
    plan.forward.run(library_, call, {o.x, o.weight, o.sum, plan.adds_bias ? o.bias : nullptr, false, residual},
                     scratch.products);
    if (plan.adds_bias) bias.data = nullptr;
    if (gelu || bias.data)
      add_bias_gelu(on(call), shape_of(query.dtype, query.rows, query.width, {o.sum, o.y, bias}),
                    {rows_of(o.sum), rows_of(o.y), bias.data, gelu, keeps_sum, gelu_form_of(query.options)});
  }

  void input_gradient(const fvlm_call& call, const Query& query, const Plan& plan, FusedGeluBackward o,
                      const GradientSums& sums, const Scratch& scratch) const {
    const bool gelu = o.x.data != nullptr;
    SkinnyGemm skinny{rows_of(o.d_y), rows_of(o.weight), rows_of(o.d_x)};
    skinny.gelu_input = rows_of(o.x), skinny.sums = sums;
    if (plan.input_is_skinny && (!gelu || is_exact(query)) &&
        skinny_gemm_takes(on(call), skinny_input_shape(query), skinny))
      return skinny_gemm(on(call), skinny_input_shape(query), skinny);
    const Shape shape = shape_of(query.dtype, query.rows, query.inner, {o.x, o.d_x});
    const MatmulOperands with_gelu{o.d_y, o.weight, o.d_x, nullptr, false, {}, o.x};
    if (gelu && plan.gelu_derivative_is_fused && tma_compatible(query.dtype, {o.d_y, o.weight, o.x, o.d_x})) {
      if (sums.required()) o.sums = reinterpret_cast<float*>(scratch.products.data());
      fused_gelu_backward(on(call), fused_input_shape(query), o);
      const Matrix parts{o.sums, query.inner};
      if (o.sums)
        column_sums(
            on(call),
            shape_of(float32, column_sum_parts(multiprocessors_, fused_input_shape(query)), query.inner, {parts}),
            rows_of(parts), sums);
      return;
    }
    if (gelu && plan.gelu_derivative_is_epilogue && plan.gelu_input.takes(with_gelu)) {
      plan.gelu_input.run(library_, call, with_gelu, scratch.products);
      if (sums.required()) column_sums(on(call), shape, rows_of(o.d_x), sums);
      return;
    }
    if (!gelu && plan.input_is_fused && tma_compatible(query.dtype, {o.d_y, o.weight, o.d_x}))
      fused_linear(on(call), fused_input_shape(query), {o.d_y, o.weight, o.d_x, nullptr, {}, true});
    else
      plan.input.run(library_, call, {o.d_y, o.weight, o.d_x}, scratch.products);
    const GeluGradient gradient{rows_of(o.x), rows_of(o.d_x), gelu_form_of(query.options)};
    if (gelu && sums.required())
      gelu_gradient(on(call), shape, gradient, sums);
    else if (gelu)
      gelu_gradient(on(call), shape, gradient);
    else if (sums.required())
      column_sums(on(call), shape, rows_of(o.d_x), sums);
  }

  void weight_gradient(const fvlm_call& call, const Query& query, const Plan& plan, const WeightGradient& o,
                       const Scratch& scratch) const {
    const Matrix d_y{o.d_y.data, o.d_y.stride}, x{o.x.data, o.x.stride};
    if ((o.d_bias ? plan.weight_and_bias_are_custom : plan.weight_is_custom) && tma_compatible(query.dtype, {d_y, x}))
      return weight_gradient_gemm(on(call), weight_gradient_shape(query), o, scratch.products.data());
    plan.weight.run(library_, call, {d_y, x, {o.d_weight, query.inner}, nullptr, o.accumulate}, scratch.products);
    // cuBLASLt's epilogue for these sums takes twice the time of the product on an H100 (bench/LOG.md).
    if (o.d_bias)
      column_sums(on(call), shape_of(query.dtype, query.rows, query.width, {d_y}), o.d_y,
                  sums_of(query, scratch, o.d_bias, o.accumulate));
  }

  // Replaces the heuristics' first choices by the fastest candidates.
  void measure(const fvlm_call& call, const Query& query, const Scratch& scratch, const TimingOperands& sets,
               Plan& plan) const {
    fill_random(stream_of(call), query.dtype, sets.memory, sets.bytes() / bytes(query.dtype));
    const auto set = [&](int repeat) { return sets.set(repeat); };
    const auto timed = [&](Matmul& product, const MatmulShape& shape,
                           const std::function<MatmulOperands(int)>& operands, const char* what) {
      product.measure(library_, call, shape, operands, scratch.products);
      log_timing(call, query, what, sets.rows, product.report());
    };
    timed(
        plan.forward, forward_shape(query, sets.rows, plan.adds_bias),
        [&](int repeat) {
          const TimingOperands::Set s = set(repeat);
          return MatmulOperands{
              s.x, s.weight, s.y, plan.adds_bias ? s.bias : nullptr, false, has_residual(query) ? s.y : Matrix{}};
        },
        "forward");
    if (has_backward(query))
      timed(
          plan.input, input_shape(query, sets.rows),
          [&](int repeat) {
            const TimingOperands::Set s = set(repeat);
            return MatmulOperands{s.y, s.weight, s.x};
          },
          "input gradient");
    measure_linear(call, query, scratch, sets, plan);
    measure_gelu(call, query, scratch, sets, plan);
    // A weight gradient sums over rows: with fewer rows other split-K configurations would win.
    if (!has_backward(query) || sets.rows < query.rows) return;
    timed(
        plan.weight, weight_shape(query, sets.rows),
        [&](int repeat) {
          const TimingOperands::Set s = set(repeat);
          return MatmulOperands{s.y, s.x, s.weight};
        },
        "weight gradient");
    measure_weight_gradient(call, query, scratch, sets, plan);
  }

  // Decides whether plain products run as custom kernels.
  void measure_linear(const fvlm_call& call, const Query& query, const Scratch& scratch, const TimingOperands& sets,
                      Plan& plan) const {
    Query timed = query;
    timed.rows = sets.rows;
    const auto choose = [&](bool Plan::*custom, const std::function<void(const Plan&, const TimingOperands::Set&)>& run,
                            const char* what) {
      Plan base_plan;
      base_plan.forward = plan.forward.with_rows(timed.rows);
      base_plan.input = plan.input.with_rows(timed.rows);
      base_plan.adds_bias = plan.adds_bias;
      base_plan.*custom = plan.*custom;
      plan.*custom = is_faster(call, query, timed.rows, base_plan, custom, what,
                               [&](const Plan& plan_candidate, int repeat) { run(plan_candidate, sets.set(repeat)); });
    };
    const auto run_forward = [&](const Plan& plan_candidate, const TimingOperands::Set& s) {
      forward(call, timed, plan_candidate, {s.x, s.weight, s.y, s.y, s.bias}, has_residual(query) ? s.y : Matrix{},
              false, scratch);
    };
    const auto run_input = [&](const Plan& plan_candidate, const TimingOperands::Set& s) {
      input_gradient(call, timed, plan_candidate, {s.y, s.weight, {}, s.x}, {}, scratch);
    };
    choose(&Plan::forward_is_skinny, run_forward, "forward, skinny GEMM");
    if (!plan.forward_is_skinny) choose(&Plan::forward_is_fused, run_forward, "forward");
    if (!has_backward(query)) return;
    choose(&Plan::input_is_skinny, run_input, "input gradient, skinny GEMM");
    if (!plan.input_is_skinny) choose(&Plan::input_is_fused, run_input, "input gradient");
  }

  // Decides whether GELU and its derivative are fused where no skinny GEMM takes them. Uses half the rows: the other
  // half of the result's memory holds the pre-activation.
  void measure_gelu(const fvlm_call& call, const Query& query, const Scratch& scratch, const TimingOperands& sets,
                    Plan& plan) const {
    Query half = query;
    half.rows = sets.rows / 2;
    if (half.rows == 0) return;
    const bool keeps_sum = has_backward(query);
    Plan base_plan = plan;
    base_plan.forward_is_skinny = base_plan.input_is_skinny = false;
    base_plan.forward = plan.forward.with_rows(half.rows);
    base_plan.input = plan.input.with_rows(half.rows);
    const auto second_half = [&](const Matrix& whole) {
      return Matrix{static_cast<char*>(whole.data) + half.rows * whole.row_stride * bytes(query.dtype),
                    whole.row_stride};
    };
    const auto choose = [&](bool Plan::*fused, const std::function<void(const Plan&, const TimingOperands::Set&)>& run,
                            const char* what) {
      plan.*fused = is_faster(call, query, half.rows, base_plan, fused, what,
                              [&](const Plan& plan_candidate, int repeat) { run(plan_candidate, sets.set(repeat)); });
    };
    const auto run_forward = [&](const Plan& plan_candidate, const TimingOperands::Set& s) {
      const Matrix sum = keeps_sum ? second_half(s.y) : s.y;
      forward(call, half, plan_candidate, {s.x, s.weight, sum, s.y, s.bias}, {}, true, scratch);
    };
    const auto run_input = [&](const Plan& plan_candidate, const TimingOperands::Set& s) {
      void* sums = query.options & FVLM_WITH_COLUMN_SUMS ? s.bias : nullptr;
      input_gradient(call, half, plan_candidate, {s.y, s.weight, s.x, second_half(s.x)},
                     sums_of(query, scratch, sums, false), scratch);
    };
    const auto choose_fused = [&] {
      choose(&Plan::gelu_is_fused, run_forward, "gelu");
      choose(&Plan::gelu_derivative_is_fused, run_input, "gelu derivative");
    };
    if (!(query.options & FVLM_GELU_TANH)) return choose_fused();
    const auto choose_epilogue = [&](Matmul Plan::*product, MatmulShape::Gelu gelu, bool Plan::*epilogue,
                                     const auto& operands, const auto& run, const char* what) {
      (plan.*product).measure(library_, call, gelu_shape(query, gelu, half.rows), operands, scratch.products);
      base_plan.*product = (plan.*product).with_rows(half.rows);
      base_plan.*epilogue = (plan.*product).takes(operands(0));
      choose(epilogue, run, what);
    };
    const auto forward_operands = [&](int repeat) {
      const TimingOperands::Set s = sets.set(repeat);
      return MatmulOperands{s.x,   s.weight, keeps_sum ? second_half(s.y) : s.y, has_bias(query) ? s.bias : nullptr,
                            false, {},       keeps_sum ? s.y : Matrix{}};
    };
    const auto input_operands = [&](int repeat) {
      const TimingOperands::Set s = sets.set(repeat);
      return MatmulOperands{s.y, s.weight, second_half(s.x), nullptr, false, {}, s.x};
    };
    using enum MatmulShape::Gelu;
    base_plan.gelu_is_fused = base_plan.gelu_derivative_is_fused = false;
    choose_epilogue(&Plan::gelu_forward, value, &Plan::gelu_is_epilogue, forward_operands, run_forward, "gelu");
    choose_epilogue(&Plan::gelu_input, derivative, &Plan::gelu_derivative_is_epilogue, input_operands, run_input,
                    "gelu derivative");
    base_plan.gelu_is_epilogue = plan.gelu_is_epilogue;
    base_plan.gelu_derivative_is_epilogue = plan.gelu_derivative_is_epilogue;
    base_plan.gelu_is_fused = plan.gelu_is_fused, base_plan.gelu_derivative_is_fused = plan.gelu_derivative_is_fused;
    choose_fused();
  }

  void measure_weight_gradient(const fvlm_call& call, const Query& query, const Scratch& scratch,
                               const TimingOperands& sets, Plan& plan) const {
    const auto choose = [&](bool Plan::*custom, bool bias, const char* what) {
      plan.*custom =
          is_faster(call, query, query.rows, plan, custom, what, [&](const Plan& plan_candidate, int repeat) {
            const TimingOperands::Set s = sets.set(repeat);
            weight_gradient(call, query, plan_candidate,
                            {rows_of(s.y), rows_of(s.x), s.weight.data, bias ? s.bias : nullptr, false}, scratch);
          });
    };
    choose(&Plan::weight_is_custom, false, "weight gradient");
    if (has_bias(query)) choose(&Plan::weight_and_bias_are_custom, true, "weight and bias gradient");
  }

  // Whether the plan with the custom kernel is faster than the same plan with cuBLASLt.
  bool is_faster(const fvlm_call& call, const Query& query, int64_t rows, const Plan& plan, bool Plan::*custom,
                 const char* what, const std::function<void(const Plan&, int repeat)>& run) const {
    if (!(plan.*custom)) return false;
    Plan cublas_plan = plan;
    cublas_plan.*custom = false;
    const auto candidate_of = [&](const Plan& of) {
      return [&](int repeat) {
        run(of, repeat);
        return true;
      };
    };
    const std::vector<double> seconds =
        time_interleaved(stream_of(call), {candidate_of(plan), candidate_of(cublas_plan)});
    char report[80];
    (void)std::snprintf(report, sizeof report, "custom kernel %.1f us, cuBLASLt %.1f us", seconds[0] * 1e6,
                        seconds[1] * 1e6);
    log_timing(call, query, what, rows, report);
    return pick_fastest(seconds) == 0;
  }

  static GradientSums sums_of(const Query& query, const Scratch& scratch, void* d_bias, bool accumulate) {
    GradientSums sums = scratch.sums;
    sums.out[0] = d_bias;
    sums.type = query.gradient_dtype;
    sums.accumulate = accumulate;
    return sums;
  }

  Device device_of(cudaStream_t stream) const { return {stream, multiprocessors_, is_hopper_}; }
  Device on(const fvlm_call& call) const { return device_of(stream_of(call)); }

  Scratch allocate(Workspace& workspace, const Query& query) const {
    Scratch scratch;
    if (is_extended(query)) scratch.fp8 = allocate_extended(workspace, query);
    if (!has_plan(query)) return scratch;
    if (query.rows > 0) {
      const bool may_sum = query.options & FVLM_WITH_COLUMN_SUMS && may_fuse(fused_input_shape(query));
      const int64_t sums = may_sum ? column_sum_parts(multiprocessors_, fused_input_shape(query)) * query.inner : 0;
      scratch.products = workspace.take<char>(
          std::max({cublas_bytes(query), may_be_custom(query) ? weight_gradient_workspace(multiprocessors_) : 0,
                    both_gradients_workspace(query, multiprocessors_), sums * static_cast<int64_t>(sizeof(float))}));
    }
    int64_t summed_columns = has_bias(query) ? query.width : 0; // columns that one call sums
    if (query.options & FVLM_WITH_COLUMN_SUMS) summed_columns = std::max(summed_columns, query.inner);
    if (has_backward(query) && summed_columns > 0 && query.rows > 0)
      scratch.sums.allocate(workspace, summed_columns, 1, multiprocessors_);
    if (is_fp8(query)) scratch.fp8 = allocate_fp8(workspace, query);
    return scratch;
  }

  CublasLt library_;
  int multiprocessors_;
  bool is_hopper_; // has clusters and TMA
  std::map<PlanKey, Plan> plans_;
  LinearChoices choices_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("kernels-cublaslt", "0.1.0", fvlm::plugins::KernelsCublasLt)
