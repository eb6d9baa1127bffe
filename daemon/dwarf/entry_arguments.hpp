// Where a function's arguments are at its first instruction, by the calling convention: code that isn't optimised says
// only where it will have stored them later. And where its result is when it returns.
//
// The thread of whoever owns the file. What the convention leaves to details that aren't followed (long double), or
// that compilers understand differently, is said to be unknown, never guessed.
#pragma once

#include <vector>

#include "daemon/dwarf/die.hpp"
#include "daemon/dwarf/location.hpp"

namespace probed::dwarf {

// What a function, inlined or not, is an instance of (the last AT_abstract_origin); itself when it is none. Unlike its
// origin this isn't the declaration in a class or namespace, whose parameters are entries of their own.
Die abstract_instance(Die function);

// One for each parameter of a function of C or a language that calls as C does; empty: of another language.
std::vector<Location> arguments_at_entry(Die function);

// Whether a parameter's type is not the one that it has at the first instruction: a float of a function that was
// defined without a prototype (K&R C) is handed over as a double, and converted there.
bool is_widened_at_entry(Die function, Die parameter);

// What a function of such a language returns, by the registers at its return instruction. Absent, with the reason: it
// returns nothing, or it isn't known where.
Location result_at_return(Die function);

// Whether nothing speaks against the result being a word in the register for those, but of what type isn't followed:
// code in assembler, integers and pointers of languages that don't call as C does.
bool result_is_plain_word(Die function);

// Its parameters, in order.
std::vector<Die> parameters_of(Die function);

}  // namespace probed::dwarf
