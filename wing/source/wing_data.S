    .section .rodata
    .balign 64
    .globl wing_variables
    .hidden wing_variables
wing_variables:
    .incbin "wing_variables.bin"
    .byte 0
    .section .rodata
    .balign 64
    .globl wing_native_own
    .hidden wing_native_own
wing_native_own:
    .incbin "wing_native_own.bin"
    .byte 0
    .section .note.GNU-stack,"",%progbits
