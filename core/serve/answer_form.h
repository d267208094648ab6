// What the text of an answer has to be: the fields response_format or text.format, of OpenAI, and structured_outputs,
// of vLLM.
#pragma once
#include "grammar/grammar.h"
#include "serve/request_fields.h"

#include <memory>
#include <string_view>

namespace fvlm::serve {

// Of a request's body, which is valid JSON, an object. Null: anything. Throws Error(usage) at the field for what is not
// valid or not supported.
std::shared_ptr<const grammar::Grammar> answer_form_of(std::string_view body, ApiForm form);

} // namespace fvlm::serve
