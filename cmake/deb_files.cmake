# Run by CPack before it packs: what Debian's policy wants in each package, and no other install.
# CPACK_TEMPORARY_DIRECTORY/COMPONENT/usr: what will be in the package.
file(GLOB staged LIST_DIRECTORIES true "${CPACK_TEMPORARY_DIRECTORY}/*")
foreach(root ${staged})
  if(NOT IS_DIRECTORY "${root}/usr")
    continue()
  endif()
  get_filename_component(package "${root}" NAME)
  set(doc "${root}/usr/share/doc/${package}")
  file(MAKE_DIRECTORY "${doc}")
  file(COPY_FILE "${CPACK_RADISH_SOURCE}/cmake/debian/copyright" "${doc}/copyright")
  file(REMOVE "${doc}/LICENSE")                         # copyright says where it is
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)      # of SOURCE_DATE_EPOCH where it is set
  file(WRITE "${doc}/changelog" "radish (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB pages "${root}/usr/share/man/man*/*.[1-9]")
  execute_process(COMMAND gzip -9nf "${doc}/changelog" ${pages} COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS "${CPACK_RADISH_SOURCE}/cmake/debian/${package}.overrides")
    file(MAKE_DIRECTORY "${root}/usr/share/lintian/overrides")
    file(COPY_FILE "${CPACK_RADISH_SOURCE}/cmake/debian/${package}.overrides" "${root}/usr/share/lintian/overrides/${package}")
  endif()
  # As root or not, with whatever umask: everybody reads, programs run.
  execute_process(COMMAND chmod -R u=rwX,go=rX "${root}/usr" COMMAND_ERROR_IS_FATAL ANY)
  # Debian's place for units is where merged systems have /usr/lib, too.
  if(IS_DIRECTORY "${root}/usr/lib/systemd")
    file(MAKE_DIRECTORY "${root}/lib")
    file(RENAME "${root}/usr/lib/systemd" "${root}/lib/systemd")
  endif()
endforeach()
