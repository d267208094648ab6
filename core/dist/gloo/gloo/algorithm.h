#pragma once
// Included by c10d's ProcessGroupGloo.hpp, which uses nothing of it.
