// The sentences behind each refusal. Any thread; constant data only.
#include "arch/common.hpp"

namespace probed::arch {

std::string_view describe(Refusal refusal) {
  switch (refusal) {
    case Refusal::none: return "the instruction can carry a probe";
    case Refusal::undecodable: return "the bytes there are not a complete instruction of this processor";
    case Refusal::breakpoint: return "the instruction is itself a breakpoint";
    case Refusal::privileged: return "the instruction is privileged and always faults in user space";
    case Refusal::far_transfer:
      return "the instruction leaves the code segment (far transfer or return to another mode)";
    case Refusal::software_interrupt: return "the instruction is a software interrupt other than int 0x80";
    case Refusal::operand_override:
      return "the instruction has an operand or address size prefix whose meaning differs between processors or that "
             "cannot be kept when the instruction is moved";
    case Refusal::exclusive:
      return "the instruction is inside an exclusive load/store sequence, which a probe would break";
    case Refusal::sequence:
      return "the instruction belongs together with its neighbours, which the processor expects to follow each other "
             "(a memory copy, or movprfx and what it prepares)";
    case Refusal::position:
      return "the instruction signs or checks a return address with its own address, which differs where it is moved "
             "to";
    case Refusal::stack_operand:
      return "the call takes its target from rsp or from where it pushes its own return address";
    case Refusal::out_of_range:
      return "what the instruction refers to cannot be reached from where memory could be placed in the process";
    case Refusal::unsupported: return "this kind of instruction cannot be probed yet on this architecture";
  }
  return "unknown refusal";
}

}  // namespace probed::arch
