// fvlm/fvlm.hpp: the whole SDK for plugins in C++17 and CUDA. Header only, needs no LibTorch.
//
//   class Mine : public fvlm::sdk::Attention { ... };    // fvlm/cpp/kinds.hpp says what to write
//   FVLM_PLUGIN("attention-mine", "0.1.0", Mine)         // once a library; one class a kind
//
// cpp/failure.hpp  Failure, refuse(), accept(), log()          cpp/view.hpp      View, Span, Workspace
// cpp/number.hpp   BFloat16, Half, dtypes, dispatch()          cpp/parallel.hpp  parallel_for()
// cpp/kinds.hpp    Attention, Loss, Optimizer, Packer, ...     cpp/table.hpp     how classes become C tables
#ifndef FVLM_FVLM_HPP
#define FVLM_FVLM_HPP

#include <fvlm/cpp/kinds.hpp>
#include <fvlm/cpp/parallel.hpp>
#include <fvlm/cpp/view.hpp>

FVLM_SDK_BEGIN

// A static of a function, not a variable template: gcc exports those however hidden they are.
template <class Class>
const void* table_of() {
  static constexpr auto table = Class::template table<Class>();
  return &table;
}

template <class First, class... Others>
constexpr bool kinds_differ() {
  if constexpr (sizeof...(Others) == 0) {
    return true;
  } else {
    return (!std::is_same_v<typename First::Query, typename Others::Query> && ...) && kinds_differ<Others...>();
  }
}

// The entry point's body.
template <class... Classes>
const fvlm_plugin* entry(const fvlm_host* host, const char* name, const char* version) noexcept {
  static_assert(kinds_differ<Classes...>(), "one class a kind: a library answers for each kind with one table");
  if (!FVLM_HAS(host, parallel_threads) || host->abi_major != FVLM_ABI_MAJOR) return nullptr;
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, name, version, [](const char* kind) -> const void* {
        const void* found = nullptr;
        (void)((kind && std::strcmp(kind, Classes::kind) == 0 ? (found = table_of<Classes>(), true) : false) || ...);
        return found;
      }};
  return &plugin;
}

FVLM_SDK_END

// Defines the library's entry point: FVLM_PLUGIN("name", "version", Class, ...), at global scope.
#define FVLM_PLUGIN(name, version, ...)                                                                                \
  extern "C" FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {                              \
    return ::fvlm::sdk::entry<__VA_ARGS__>(host, name, version);                                                       \
  }

#endif
