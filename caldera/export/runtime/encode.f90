! --- TYPES
  ! A row of the table: a missing number is NaN, any other value blank.
  type, public :: MODEL_row
! @FIELDS@
  end type

  type, bind(c) :: c_row
! @POINTERS@
  end type

! --- BOUND
    procedure :: encode => do_encode
! --- DECLARED
    function c_encode(model, rows, table, x) bind(c, name="MODEL_encode") result(code)
      import :: c_int, c_int64_t, c_ptr, c_row, @KIND@
      type(c_ptr), value :: model
      integer(c_int64_t), value :: rows
      type(c_row), intent(in) :: table(*)
      @INPUT@, intent(out) :: x(*)
      integer(c_int) :: code
    end function

! --- BODIES
  ! Encode rows of the table as the inputs x of the network.
  subroutine do_encode(self, table, x, status)
    class(MODEL_model), intent(in) :: self
    type(MODEL_row), intent(in) :: table(:)
    @INPUT@, contiguous, intent(out) :: x(:, :)
    integer, intent(out), optional :: status
    character(kind=c_char, len=@LENGTH@), allocatable, target :: texts(:, :)
    type(c_row), allocatable :: rows(:)
    integer :: code, i

    allocate (rows(size(table)), texts(@TEXTS@, size(table)))
    do i = 1, size(table)
! @COPIES@
    end do
    code = MODEL_rows
    if (all(shape(x) == [@WIDTH@, size(table)])) &
      code = int(c_encode(self%handle, size(table, kind=c_int64_t), rows, x))
    call finish(self, code, "encode", status)
  end subroutine

