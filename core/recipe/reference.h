// Documentation generated from the schema: the reference page and the editor stubs.
#pragma once
#include <string>

namespace fvlm::recipe {

std::string reference_page(); // recipes/REFERENCE.md
std::string editor_stubs();   // recipes/fvlm.d.lua, LuaCATS

} // namespace fvlm::recipe
