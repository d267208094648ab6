// fvlm-engine recipe: new recipes, and the reference page and the editor stubs that are generated from the schema.
#include "cli/options.h"
#include "recipe/reference.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

int print_page(Arguments arguments, const char* usage, const char* summary, const char* example,
               std::string (*page)()) {
  if (!Options(usage, summary, example).parse(arguments)) return 0;
  fmt::print("{}", page());
  return 0;
}

int run_reference(Arguments arguments) {
  return print_page(arguments, "recipe reference",
                    "Print the reference of recipes as Markdown: each table, key, default and meaning.",
                    "recipe reference > recipes/REFERENCE.md", recipe::reference_page);
}

int run_stubs(Arguments arguments) {
  return print_page(arguments, "recipe stubs",
                    "Print the stubs with which an editor's Lua language server completes and checks a recipe.",
                    "recipe stubs > recipes/fvlm.d.lua", recipe::editor_stubs);
}

constexpr Verb verbs[] = {
    {"new", "write a recipe for a model and data", run_recipe_new},
    {"reference", "print each table, key, default and meaning, as Markdown", run_reference},
    {"stubs", "print types for the editor's Lua language server (LuaCATS)", run_stubs},
};

} // namespace

int run_recipe(Arguments arguments) {
  return run_group("recipe", "A first recipe, and the documentation for authors of recipes.", verbs, arguments);
}

} // namespace fvlm::cli
