// Rules across the tables of a recipe, which the schema of a single table cannot express, and derived values.
#pragma once
#include "recipe/plan.h"
#include "recipe/schema/reader.h"

namespace fvlm::recipe {

// Reports inconsistencies. Checks only parts that were read without a mistake.
void check_plan(Reader& reader, const plan::Plan& plan);

// An encoder of bytes reads one text of a sample, whatever max_frames says. To be called before check_plan().
void derive_frames(plan::Plan& plan);

// Computes derived values of a Plan without mistakes: the chain of stages, rates by group, steps, and sizes of new
// towers. Values from a `default` entry get its origin.
void derive(Reader& reader, plan::Plan& plan);

// Computes the number of steps and of warm-up steps of a stage, where its number of samples is known.
void derive_steps(plan::Stage& stage);

} // namespace fvlm::recipe
