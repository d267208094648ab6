// fvlm/fvlm.hpp: the whole SDK for plugins in C++17 and CUDA. Header only, needs no LibTorch.
//
//   class Mine : public fvlm::sdk::Attention { ... };    // fvlm/cpp/kinds.hpp says which members a class has
//   FVLM_PLUGIN("attention-mine", "0.1.0", Mine)         // once per library, with all its classes
//
// The SDK's types have hidden visibility, so that no two libraries share one: put yours into an anonymous namespace or
// compile with -fvisibility=hidden (gcc warns of "greater visibility" otherwise).
//
// cpp/failure.hpp  Failure, refuse(), accept(), log()          cpp/view.hpp      View, Span, Workspace
// cpp/number.hpp   BFloat16, Half, dtypes, dispatch()          cpp/parallel.hpp  parallel_for()
// cpp/kinds.hpp    Attention, Loss, Optimizer, Packer, ...     cpp/table.hpp     how classes become C tables
#ifndef FVLM_FVLM_HPP
#define FVLM_FVLM_HPP

#include <fvlm/cpp/kinds.hpp>
#include <fvlm/cpp/parallel.hpp>
#include <fvlm/cpp/view.hpp>

#include <string_view>

FVLM_SDK_BEGIN

// A function-local static instead of a variable template: gcc's visibility pragma does not apply to those.
template <class Class>
const void* table_of() {
  static constexpr auto table = Class::template table<Class>();
  return &table;
}

// The kind of a class is its family followed by its variant.
template <class Class>
bool is_kind(const char* kind) {
  const std::string_view requested(kind), family(Class::family);
  return requested.substr(0, family.size()) == family &&
         requested.substr(family.size()) == Class::template variant<Class>;
}

template <class First, class... Others>
constexpr bool kinds_differ() {
  if constexpr (sizeof...(Others) == 0) {
    return true;
  } else {
    constexpr std::string_view family = First::family, variant = First::template variant<First>;
    return ((family != Others::family || variant != Others::template variant<Others>)&&...) &&
           kinds_differ<Others...>();
  }
}

// The body of the entry point.
template <class... Classes>
const fvlm_plugin* entry(const fvlm_host* host, const char* name, const char* version) noexcept {
  static_assert(kinds_differ<Classes...>(), "two classes of one library have the same kind");
  if (!FVLM_HAS(host, parallel_threads) || host->abi_major != FVLM_ABI_MAJOR) return nullptr;
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, name, version, [](const char* kind) -> const void* {
        const void* found = nullptr;
        (void)((kind && is_kind<Classes>(kind) ? (found = table_of<Classes>(), true) : false) || ...);
        return found;
      }};
  return &plugin;
}

FVLM_SDK_END

// Defines the entry point of the library: FVLM_PLUGIN("name", "version", Class, ...), at global scope.
#define FVLM_PLUGIN(name, version, ...)                                                                                \
  extern "C" FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {                              \
    return ::fvlm::sdk::entry<__VA_ARGS__>(host, name, version);                                                       \
  }

#endif
