// Explicit instantiations of templates that nearly every file uses: base/templates.cpp defines them, all other files
// declare them extern, which shortens their compilation. Included by the precompiled headers; a file without those
// still works.
#pragma once
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <type_traits>
#include <vector>

#ifndef FVLM_TEMPLATE
#define FVLM_TEMPLATE extern template
#endif

// In C++20 mode, gcc 12's standard library does not declare even these extern.
FVLM_TEMPLATE class std::basic_string<char>;
FVLM_TEMPLATE class std::vector<bool>;
FVLM_TEMPLATE class std::vector<std::string>;

namespace fvlm::base_detail {
using InText = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
using InBytes = nlohmann::detail::iterator_input_adapter<const char*>;
} // namespace fvlm::base_detail

#define FVLM_JSON_ERROR(error, Context) FVLM_TEMPLATE error error::create(int, const std::string&, Context);

#define FVLM_JSON_TEMPLATES(Json)                                                                                      \
  FVLM_TEMPLATE Json::basic_json(const Json&);                                                                         \
  FVLM_TEMPLATE Json::basic_json(Json::initializer_list_t, bool, Json::value_t);                                       \
  FVLM_TEMPLATE Json::json_value::json_value(Json::value_t);                                                           \
  FVLM_TEMPLATE void Json::json_value::destroy(Json::value_t);                                                         \
  FVLM_TEMPLATE std::string Json::dump(int, char, bool, Json::error_handler_t) const;                                  \
  FVLM_TEMPLATE class std::vector<Json>;                                                                               \
  FVLM_TEMPLATE class nlohmann::detail::serializer<Json>;                                                              \
  FVLM_TEMPLATE class nlohmann::detail::lexer<Json, fvlm::base_detail::InText>;                                        \
  FVLM_TEMPLATE class nlohmann::detail::lexer<Json, fvlm::base_detail::InBytes>;                                       \
  FVLM_TEMPLATE class nlohmann::detail::parser<Json, fvlm::base_detail::InText>;                                       \
  FVLM_TEMPLATE class nlohmann::detail::parser<Json, fvlm::base_detail::InBytes>;                                      \
  FVLM_TEMPLATE class nlohmann::detail::json_sax_dom_parser<Json>;                                                     \
  FVLM_TEMPLATE class nlohmann::detail::json_sax_dom_callback_parser<Json>;                                            \
  FVLM_JSON_ERROR(Json::type_error, std::add_pointer_t<const Json>)                                                    \
  FVLM_JSON_ERROR(Json::type_error, std::add_pointer_t<Json>)                                                          \
  FVLM_JSON_ERROR(Json::out_of_range, std::add_pointer_t<const Json>)                                                  \
  FVLM_JSON_ERROR(Json::out_of_range, std::add_pointer_t<Json>)                                                        \
  FVLM_JSON_ERROR(Json::invalid_iterator, std::add_pointer_t<const Json>)                                              \
  FVLM_JSON_ERROR(Json::invalid_iterator, std::add_pointer_t<Json>)

FVLM_JSON_TEMPLATES(nlohmann::json)
FVLM_JSON_TEMPLATES(nlohmann::ordered_json)
FVLM_JSON_ERROR(nlohmann::json::type_error, std::nullptr_t)
FVLM_JSON_ERROR(nlohmann::json::out_of_range, std::nullptr_t)
FVLM_JSON_ERROR(nlohmann::json::other_error, std::nullptr_t)
FVLM_TEMPLATE class std::map<std::string, nlohmann::json, std::less<>>;
