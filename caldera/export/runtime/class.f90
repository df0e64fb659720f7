! --- BOUND
    procedure, nopass :: class_name => do_class_name
! --- DECLARED
    function c_class(number) bind(c, name="MODEL_class") result(text)
      import :: c_int64_t, c_ptr
      integer(c_int64_t), value :: number
      type(c_ptr) :: text
    end function

! --- BODIES
  ! Return the name of a class, counted from 1 as by maxloc; other numbers have an empty name.
  function do_class_name(number) result(text)
    integer, intent(in) :: number
    character(len=:), allocatable :: text
    type(c_ptr) :: found

    found = c_class(int(number, c_int64_t) - 1)
    text = ""
    if (c_associated(found)) text = text_of(found)
  end function

