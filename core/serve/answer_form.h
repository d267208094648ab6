// What the text of an answer has to be: the fields response_format or text.format, of OpenAI, structured_outputs, of
// vLLM, and what had its place there before 0.10: guided_json, guided_regex, guided_choice and guided_grammar; and
// grammar, of llama.cpp.
#pragma once
#include "grammar/grammar.h"
#include "serve/request_fields.h"

#include <memory>
#include <string_view>

namespace fvlm::serve {

// `fields`: of the request's body, which is valid JSON, an object. Null: anything. Throws Error(usage) at the field for
// what is not valid or not supported.
std::shared_ptr<const grammar::Grammar> answer_form_of(const RequestFields& fields, std::string_view body,
                                                       ApiForm form);

} // namespace fvlm::serve
