// fvlm/cpp/table.hpp: turns the member functions of a class into the functions of a C table. Plugin authors need not
// read it.
#ifndef FVLM_CPP_TABLE_HPP
#define FVLM_CPP_TABLE_HPP

#include <fvlm/cpp/number.hpp>

#include <algorithm>
#include <initializer_list>

FVLM_SDK_BEGIN

// Filled in by requirements(): workspace sizes, and the tensors that forward saves for backward.
template <>
inline constexpr std::size_t min_struct_size<fvlm_requirements> = offsetof(fvlm_requirements, prepare_workspace);

struct Requirements {
  std::uint64_t forward_workspace = 0;
  std::uint64_t backward_workspace = 0;
  std::uint64_t prepare_workspace = 0; // see fvlm_requirements
  std::uint64_t deterministic_workspace = 0;
  std::uint32_t saved_count = 0;
  fvlm_tensor_spec saved[FVLM_MAX_SAVED] = {};

  void save(fvlm_dtype dtype, std::initializer_list<std::int64_t> shape) {
    if (saved_count == FVLM_MAX_SAVED || shape.size() > FVLM_MAX_DIMS) {
      throw Failure(FVLM_ERROR_INTERNAL, "at most %d tensors of %d dimensions can be saved", FVLM_MAX_SAVED,
                    FVLM_MAX_DIMS);
    }
    fvlm_tensor_spec& spec = saved[saved_count++];
    spec.dtype = dtype;
    spec.ndim = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), spec.shape);
  }
};

// Placeholder of an optional function in a kind's base class, hidden by the member function of a class that has it.
struct NotOffered {};

template <auto member>
inline constexpr bool offered = std::is_member_function_pointer_v<decltype(member)>;

template <class Class>
Class& self(fvlm_instance* instance) {
  if (!instance) throw Failure(FVLM_ERROR_ARGUMENT, "instance is NULL");
  return *reinterpret_cast<Class*>(instance);
}

template <class Class>
fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  return guarded(error, [&] {
    if (!instance) throw Failure(FVLM_ERROR_ARGUMENT, "instance is NULL");
    *instance = nullptr;
    check_struct(config, "config");
    Class* created = nullptr;
    if constexpr (std::is_constructible_v<Class, const fvlm_instance_config&>) {
      created = new Class(*config);
    } else {
      created = new Class();
    }
    *instance = reinterpret_cast<fvlm_instance*>(created);
  });
}

template <class Class>
void destroy(fvlm_instance* instance) noexcept {
  delete reinterpret_cast<Class*>(instance);
}

template <class Query, class Supports>
void answer(const Query* query, fvlm_support* support, const Supports& supports) noexcept {
  if (!FVLM_HAS(support, reason)) return;
  support->score = 0;
  support->reason[0] = 0;
  fvlm_error error{sizeof error, sizeof support->reason, support->reason};
  (void)guarded(&error, [&] {
    check_struct(query, "query");
    const Support result = supports(*query);
    support->score = result.score;
    std::memcpy(support->reason, result.reason, sizeof result.reason);
  });
}

template <class Class, class Query>
void supports(const Query* query, fvlm_support* support) {
  answer(query, support, [](const Query& requested) { return Class::supports(requested); });
}

template <class Query, class Require>
fvlm_status fill_requirements(const Query* query, fvlm_requirements* out, fvlm_error* error, const Require& require) {
  return guarded(error, [&] {
    check_struct(query, "query");
    check_struct<fvlm_requirements>(out, "requirements");
    Requirements required;
    require(*query, required);
    out->saved_count = required.saved_count;
    out->forward_workspace = required.forward_workspace;
    out->backward_workspace = required.backward_workspace;
    std::copy(required.saved, required.saved + FVLM_MAX_SAVED, out->saved);
    if (FVLM_HAS(out, prepare_workspace)) out->prepare_workspace = required.prepare_workspace;
    if (FVLM_HAS(out, deterministic_workspace))
      out->deterministic_workspace = required.deterministic_workspace;
    else // of an older engine, which gives all calls the same
      out->backward_workspace = std::max(required.backward_workspace, required.deterministic_workspace);
  });
}

template <class Class, class Query>
fvlm_status requirements(fvlm_instance* instance, const Query* query, fvlm_requirements* out, fvlm_error* error) {
  return fill_requirements(query, out, error, [&](const Query& requested, Requirements& required) {
    self<Class>(instance).requirements(requested, required);
  });
}

template <class Class, class Query>
fvlm_status prepare(fvlm_instance* instance, const fvlm_call* call, const Query* query) {
  return guarded(fvlm_sink(call), [&] {
    check_struct(call, "call");
    check_struct(query, "query");
    self<Class>(instance).prepare(*call, *query);
  });
}

template <class Class, auto member, class Query, class Arguments>
fvlm_status step(fvlm_instance* instance, const fvlm_call* call, const Query* query, const Arguments* arguments) {
  return guarded(fvlm_sink(call), [&] {
    check_struct(call, "call");
    check_struct(query, "query");
    check_struct(arguments, "arguments");
    (self<Class>(instance).*member)(*call, *query, *arguments);
  });
}

// Sets a slot of the table to the class's function; leaves it NULL where the class has none.
template <class Class, auto member, class Query, class Arguments>
constexpr void offer(fvlm_status (*&slot)(fvlm_instance*, const fvlm_call*, const Query*, const Arguments*)) {
  if constexpr (offered<member>) slot = &step<Class, member, Query, Arguments>;
}

// The functions that the tables of all kinds have.
template <class Class, class Table>
constexpr Table begin_table() {
  Table table{};
  table.base.struct_size = sizeof table;
  table.base.create = &create<Class>;
  table.base.destroy = &destroy<Class>;
  table.supports = &supports<Class, typename Class::Query>;
  return table;
}

// The functions that the tables of kinds with device memory have.
template <class Class, class Table>
constexpr Table begin_device_table() {
  Table table = begin_table<Class, Table>();
  table.requirements = &requirements<Class, typename Class::Query>;
  table.prepare = &prepare<Class, typename Class::Query>;
  return table;
}

FVLM_SDK_END

#endif
