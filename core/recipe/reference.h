// What is written from the schema for authors: the reference page and the editor's stubs.
#pragma once
#include <string>

namespace fvlm::recipe {

std::string reference_page(); // recipes/REFERENCE.md
std::string editor_stubs();   // recipes/fvlm.d.lua, LuaCATS

} // namespace fvlm::recipe
