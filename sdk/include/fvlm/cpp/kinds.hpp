// fvlm/cpp/kinds.hpp: one base class per kind. A plugin's class derives from it publicly and has these public members:
//
//   static Support supports(const Query& query);                  // accept(100, "...") or refuse("...")
//   a constructor that takes const fvlm_instance_config& or nothing
//   void requirements(const Query&, Requirements&) const;          // if it needs workspace or saved tensors
//   void prepare(const fvlm_call&, const Query&);                  // if it builds plans
//   void forward(const fvlm_call&, const Query&, const Forward&);  // and the kind's other functions
//
// The C header of the kind says what each function computes, and who calls it when. Functions that are NotOffered below
// are optional. All but the destructor may throw: cpp/failure.hpp says which status an exception becomes.
#ifndef FVLM_CPP_KINDS_HPP
#define FVLM_CPP_KINDS_HPP

#include <fvlm/cpp/table.hpp>
#include <fvlm/fvlm.h>

#include <iterator>

FVLM_SDK_BEGIN

template <>
inline constexpr std::size_t min_struct_size<fvlm_attention_query> = offsetof(fvlm_attention_query, partial);
template <>
inline constexpr std::size_t min_struct_size<fvlm_paged_attention_query> = offsetof(fvlm_paged_attention_query,
                                                                                    appends);
template <>
inline constexpr std::size_t min_struct_size<fvlm_paged_attention> = offsetof(fvlm_paged_attention, k);

struct Attention {
  static constexpr const char* family = FVLM_ATTENTION_KIND;
  template <class>
  static constexpr const char* variant = "";
  using Query = fvlm_attention_query;
  using Forward = fvlm_attention_forward;
  using Backward = fvlm_attention_backward;
  using PagedQuery = fvlm_paged_attention_query;
  using Paged = fvlm_paged_attention;

  void requirements(const Query&, Requirements&) const {}
  void prepare(const fvlm_call&, const Query&) {}
  // Attention over pages: a class that has forward_paged also has `static Support supports_paged(const PagedQuery&)`.
  static constexpr NotOffered forward_paged{};
  void requirements_paged(const PagedQuery&, Requirements&) const {}
  void prepare_paged(const fvlm_call&, const PagedQuery&) {}
  static constexpr std::uint32_t features = 0; // FVLM_ATTENTION_*
  // The query of an engine that was built before there was `partial` has none.
  static bool is_partial(const Query& query) {
    return query.struct_size > offsetof(Query, partial) && query.partial != 0;
  }
  // The same of `window` and `appends`.
  template <class AnyQuery>
  static std::int32_t window_of(const AnyQuery& query) {
    return query.struct_size > offsetof(AnyQuery, window) ? query.window : 0;
  }
  static bool appends(const PagedQuery& query) {
    return query.struct_size > offsetof(PagedQuery, appends) && query.appends != 0;
  }

  template <class Class>
  static constexpr fvlm_attention_v1 table() {
    auto table = begin_device_table<Class, fvlm_attention_v1>();
    offer<Class, &Class::forward>(table.forward);
    offer<Class, &Class::backward>(table.backward);
    if constexpr (offered<&Class::forward_paged>) {
      table.supports_paged = &supports_paged<Class>;
      table.requirements_paged = &requirements_paged<Class>;
      table.prepare_paged = &prepare_paged<Class>;
      offer<Class, &Class::forward_paged>(table.forward_paged);
    }
    table.features = Class::features;
    return table;
  }

 private:
  template <class Class>
  static void supports_paged(const PagedQuery* query, fvlm_support* support) {
    answer(query, support, [](const PagedQuery& requested) { return Class::supports_paged(requested); });
  }
  template <class Class>
  static fvlm_status requirements_paged(fvlm_instance* instance, const PagedQuery* query, fvlm_requirements* out,
                                        fvlm_error* error) {
    return fill_requirements(query, out, error, [&](const PagedQuery& requested, Requirements& required) {
      self<Class>(instance).requirements_paged(requested, required);
    });
  }
  template <class Class>
  static fvlm_status prepare_paged(fvlm_instance* instance, const fvlm_call* call, const PagedQuery* query) {
    return guarded(fvlm_sink(call), [&] {
      check_struct(call, "call");
      check_struct(query, "query");
      self<Class>(instance).prepare_paged(*call, *query);
    });
  }
};

template <>
inline constexpr std::size_t min_struct_size<fvlm_loss_query> = offsetof(fvlm_loss_query, softcap);

struct Loss {
  static constexpr const char* family = FVLM_LOSS_KIND;
  template <class>
  static constexpr const char* variant = "";
  using Query = fvlm_loss_query;
  using Forward = fvlm_loss_forward;
  using Backward = fvlm_loss_backward;
  using Fused = fvlm_loss_fused;

  void requirements(const Query&, Requirements&) const {}
  void prepare(const fvlm_call&, const Query&) {}
  static constexpr NotOffered fused{};
  static constexpr std::uint32_t features = 0; // FVLM_LOSS_*

  // The query of an engine that was built before there was a softcap has none.
  static float softcap(const Query& query) { return query.struct_size > offsetof(Query, softcap) ? query.softcap : 0; }

  template <class Class>
  static constexpr fvlm_loss_v1 table() {
    auto table = begin_device_table<Class, fvlm_loss_v1>();
    offer<Class, &Class::forward>(table.forward);
    offer<Class, &Class::backward>(table.backward);
    offer<Class, &Class::fused>(table.fused);
    table.features = Class::features;
    return table;
  }
};

// The result of Optimizer's states(): `return {{"m", float32}, {"v", float32}};`
struct States {
  std::int32_t count = 0;
  fvlm_optimizer_state state[FVLM_MAX_STATES] = {};

  States(std::initializer_list<fvlm_optimizer_state> list) {
    for (const fvlm_optimizer_state& each : list) {
      if (count < FVLM_MAX_STATES) state[count] = each;
      ++count;
    }
  }
};

// Also needs: static constexpr const char* algorithm = "adamw";
//             static constexpr fvlm_hyperparameter hyperparameters[] = {{"lr", 1e-3, 0, 10}, ...};
//             static States states(const Query& query);
struct Optimizer {
  static constexpr const char* family = FVLM_OPTIMIZER_KIND("");
  template <class Class>
  static constexpr const char* variant = Class::algorithm;
  using Query = fvlm_optimizer_query;
  using Step = fvlm_optimizer_step;

  void requirements(const Query&, Requirements&) const {}
  void prepare(const fvlm_call&, const Query&) {}

  template <class Class>
  static constexpr fvlm_optimizer_v1 table() {
    auto table = begin_device_table<Class, fvlm_optimizer_v1>();
    table.algorithm = Class::algorithm;
    table.hyperparameters = Class::hyperparameters;
    table.hyperparameter_count = static_cast<std::int32_t>(std::size(Class::hyperparameters));
    table.states = &states<Class>;
    offer<Class, &Class::step>(table.step);
    return table;
  }

 private:
  template <class Class>
  static std::int32_t states(const Query* query, fvlm_optimizer_state* out) {
    std::int32_t count = -1; // refused by the engine, where states() throws
    (void)guarded(nullptr, [&] {
      check_struct(query, "query");
      const States states = Class::states(*query);
      count = states.count; // the engine refuses more than FVLM_MAX_STATES, and needs the number to say so
      std::copy(states.state, states.state + std::min(count, FVLM_MAX_STATES), out);
    });
    return count;
  }
};

// Needs: static Support supports(const Query& query);
//        void pack(const Query&, const Pack&);
struct Packer {
  static constexpr const char* family = FVLM_PACKER_KIND;
  template <class>
  static constexpr const char* variant = "";
  using Query = fvlm_packer_query;
  using Pack = fvlm_packer_pack;

  template <class Class>
  static constexpr fvlm_packer_v1 table() {
    auto table = begin_table<Class, fvlm_packer_v1>();
    table.pack = &pack<Class>;
    return table;
  }

 private:
  template <class Class>
  static fvlm_status pack(fvlm_instance* instance, const Query* query, const Pack* arguments, fvlm_error* error) {
    return guarded(error, [&] {
      check_struct(query, "query");
      check_struct(arguments, "arguments");
      self<Class>(instance).pack(*query, *arguments);
    });
  }
};

// Needs: static Support supports(const Query& query);
//        void probe(const Query&, const Probe&);
//        void decode(const Query&, const Decode&);
struct Video {
  static constexpr const char* family = FVLM_VIDEO_KIND;
  template <class>
  static constexpr const char* variant = "";
  using Query = fvlm_video_query;
  using File = fvlm_video_file;
  using Probe = fvlm_video_probe;
  using Picture = fvlm_video_picture;
  using Decode = fvlm_video_decode;

  template <class Class>
  static constexpr fvlm_video_v1 table() {
    auto table = begin_table<Class, fvlm_video_v1>();
    table.probe = &call<Class, Probe, &Class::probe>;
    table.decode = &call<Class, Decode, &Class::decode>;
    return table;
  }

 private:
  template <class Class, class Arguments, auto function>
  static fvlm_status call(fvlm_instance* instance, const Query* query, const Arguments* arguments, fvlm_error* error) {
    return guarded(error, [&] {
      check_struct(query, "query");
      check_struct(arguments, "arguments");
      check_struct(arguments->file, "file");
      (self<Class>(instance).*function)(*query, *arguments);
    });
  }
};

// Columns that share a scale of int4, as fvlm/quantizer.h says.
constexpr std::int64_t int4_group(std::int64_t cols) {
  for (const std::int64_t size : {128, 64, 32})
    if (cols % size == 0 && (cols >= 4 * size || size == 32)) return size;
  return cols;
}

// Also needs: static constexpr const char* scheme = "int8"; static constexpr int bits = 8;
struct Quantizer {
  static constexpr const char* family = FVLM_QUANTIZER_KIND("");
  template <class Class>
  static constexpr const char* variant = Class::scheme;
  using Query = fvlm_quantizer_query;
  using Pack = fvlm_quantizer_pack;
  using Unpack = fvlm_quantizer_unpack;
  using Linear = fvlm_quantizer_linear;
  using LinearGradient = fvlm_quantizer_linear_gradient;
  using FakeForward = fvlm_fake_quantize_forward;
  using FakeBackward = fvlm_fake_quantize_backward;

  void requirements(const Query&, Requirements&) const {}
  void prepare(const fvlm_call&, const Query&) {}
  // NULL for an engine that does not know the field, too.
  static const fvlm_tensor* importance_of(const Pack& arguments) {
    return arguments.struct_size > offsetof(Pack, importance) ? arguments.importance : nullptr;
  }
  static constexpr std::uint32_t features = 0; // FVLM_QUANTIZED_*
  static std::uint32_t options_of(const Query& query) {
    return query.struct_size > offsetof(Query, options) ? query.options : 0;
  }

  template <class Class>
  static constexpr fvlm_quantizer_v1 table() {
    auto table = begin_device_table<Class, fvlm_quantizer_v1>();
    table.scheme = Class::scheme;
    table.bits = Class::bits;
    offer<Class, &Class::pack>(table.pack);
    offer<Class, &Class::unpack>(table.unpack);
    offer<Class, &Class::linear>(table.linear);
    offer<Class, &Class::linear_gradient>(table.linear_gradient);
    offer<Class, &Class::fake_quantize_forward>(table.fake_quantize_forward);
    offer<Class, &Class::fake_quantize_backward>(table.fake_quantize_backward);
    table.features = Class::features;
    return table;
  }
};

template <>
inline constexpr std::size_t min_struct_size<fvlm_quantizer_query> = offsetof(fvlm_quantizer_query, options);
template <>
inline constexpr std::size_t min_struct_size<fvlm_quantizer_linear> = offsetof(fvlm_quantizer_linear, residual);
template <>
inline constexpr std::size_t min_struct_size<fvlm_quantizer_pack> = offsetof(fvlm_quantizer_pack, importance);

template <>
inline constexpr std::size_t min_struct_size<fvlm_kernels_query> = offsetof(fvlm_kernels_query, experts);
template <>
inline constexpr std::size_t min_struct_size<fvlm_norm_forward> = offsetof(fvlm_norm_forward, gate);
template <>
inline constexpr std::size_t min_struct_size<fvlm_norm_backward> = offsetof(fvlm_norm_backward, gate);

template <>
inline constexpr std::size_t min_struct_size<fvlm_linear_forward> = offsetof(fvlm_linear_forward, norm_weight);

template <>
inline constexpr std::size_t min_struct_size<fvlm_rope_apply> = offsetof(fvlm_rope_apply, frequencies);

// Each operation is optional; supports() is called only for those that the class has.
struct Kernels {
  static constexpr const char* family = FVLM_KERNELS_KIND;
  template <class>
  static constexpr const char* variant = "";
  using Query = fvlm_kernels_query;

  void requirements(const Query&, Requirements&) const {}
  void prepare(const fvlm_call&, const Query&) {}
  static constexpr NotOffered rmsnorm_forward{}, rmsnorm_backward{};
  static constexpr NotOffered layernorm_forward{}, layernorm_backward{};
  static constexpr NotOffered rope{};
  static constexpr NotOffered swiglu_forward{}, swiglu_backward{};
  static constexpr NotOffered bias_gelu_forward{}, bias_gelu_backward{};
  static constexpr NotOffered layerscale_forward{}, layerscale_backward{};
  static constexpr NotOffered linear_forward{}, linear_input_gradient{}, linear_weight_gradient{};
  static constexpr NotOffered scaled_rows_forward{}, scaled_rows_backward{};
  static constexpr NotOffered short_convolution_forward{}, short_convolution_backward{};
  static constexpr NotOffered delta_rule_forward{}, delta_rule_backward{};
  static constexpr NotOffered experts_forward{};

  template <class Class>
  static constexpr fvlm_kernels_v1 table() {
    static_assert(offered<&Class::rmsnorm_forward> == offered<&Class::rmsnorm_backward> &&
                      offered<&Class::layernorm_forward> == offered<&Class::layernorm_backward> &&
                      offered<&Class::swiglu_forward> == offered<&Class::swiglu_backward> &&
                      offered<&Class::bias_gelu_forward> == offered<&Class::bias_gelu_backward> &&
                      offered<&Class::layerscale_forward> == offered<&Class::layerscale_backward> &&
                      offered<&Class::linear_forward> == offered<&Class::linear_input_gradient> &&
                      offered<&Class::linear_forward> == offered<&Class::linear_weight_gradient> &&
                      offered<&Class::scaled_rows_forward> == offered<&Class::scaled_rows_backward> &&
                      offered<&Class::short_convolution_forward> == offered<&Class::short_convolution_backward> &&
                      offered<&Class::delta_rule_forward> == offered<&Class::delta_rule_backward>,
                  "a forward comes with its backward");
    auto table = begin_device_table<Class, fvlm_kernels_v1>();
    table.supports = &supports_op<Class>;
    offer<Class, &Class::rmsnorm_forward>(table.rmsnorm_forward);
    offer<Class, &Class::rmsnorm_backward>(table.rmsnorm_backward);
    offer<Class, &Class::layernorm_forward>(table.layernorm_forward);
    offer<Class, &Class::layernorm_backward>(table.layernorm_backward);
    offer<Class, &Class::rope>(table.rope);
    offer<Class, &Class::swiglu_forward>(table.swiglu_forward);
    offer<Class, &Class::swiglu_backward>(table.swiglu_backward);
    offer<Class, &Class::bias_gelu_forward>(table.bias_gelu_forward);
    offer<Class, &Class::bias_gelu_backward>(table.bias_gelu_backward);
    offer<Class, &Class::layerscale_forward>(table.layerscale_forward);
    offer<Class, &Class::layerscale_backward>(table.layerscale_backward);
    offer<Class, &Class::linear_forward>(table.linear_forward);
    offer<Class, &Class::linear_input_gradient>(table.linear_input_gradient);
    offer<Class, &Class::linear_weight_gradient>(table.linear_weight_gradient);
    offer<Class, &Class::scaled_rows_forward>(table.scaled_rows_forward);
    offer<Class, &Class::scaled_rows_backward>(table.scaled_rows_backward);
    offer<Class, &Class::short_convolution_forward>(table.short_convolution_forward);
    offer<Class, &Class::short_convolution_backward>(table.short_convolution_backward);
    offer<Class, &Class::delta_rule_forward>(table.delta_rule_forward);
    offer<Class, &Class::delta_rule_backward>(table.delta_rule_backward);
    offer<Class, &Class::experts_forward>(table.experts_forward);
    return table;
  }

 private:
  template <class Class>
  static constexpr bool has(std::int32_t op) {
    return (op == FVLM_OP_RMSNORM && offered<&Class::rmsnorm_forward>) ||
           (op == FVLM_OP_LAYERNORM && offered<&Class::layernorm_forward>) ||
           (op == FVLM_OP_ROPE && offered<&Class::rope>) || (op == FVLM_OP_SWIGLU && offered<&Class::swiglu_forward>) ||
           (op == FVLM_OP_BIAS_GELU && offered<&Class::bias_gelu_forward>) ||
           (op == FVLM_OP_LAYERSCALE_RESIDUAL && offered<&Class::layerscale_forward>) ||
           (op == FVLM_OP_LINEAR && offered<&Class::linear_forward>) ||
           (op == FVLM_OP_SCALED_ROWS && offered<&Class::scaled_rows_forward>) ||
           (op == FVLM_OP_SHORT_CONVOLUTION && offered<&Class::short_convolution_forward>) ||
           (op == FVLM_OP_DELTA_RULE && offered<&Class::delta_rule_forward>) ||
           (op == FVLM_OP_EXPERTS && offered<&Class::experts_forward>);
  }

  template <class Class>
  static void supports_op(const Query* query, fvlm_support* support) {
    answer(query, support, [](const Query& requested) {
      return has<Class>(requested.op) ? Class::supports(requested) : refuse("this operation is not offered");
    });
  }
};

FVLM_SDK_END

#endif
